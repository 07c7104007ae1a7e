# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep`: words are checked, trials are pruned, and kill -9 costs the trials under way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import veldt
from veldt.cli import main as cli
from veldt.sweeps.search import SweepOptions, search_space
from veldt.sweeps.study import Rungs, num_counted, open_study, sweep_result

TrialState = pytest.importorskip("optuna").trial.TrialState
RUN = ("--env", "CartPole-v1", "--backend", "serial", "--num-actors", "1", "--envs-per-actor", "8")
BUDGET = ("--total-env-steps", "8000", "--evaluation-episodes", "2")
SEARCH = ("--search", "learning_rate=1e-6..1e-1:log", "--search", "trajectory_steps=5,10")
COMMAND = ["sweep", "impala", *RUN, *BUDGET, *SEARCH, "--trials", "2", "--parallel", "2"]
ROOT = str(Path(veldt.__file__).parent.parent)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rat=1..2", "'learning_rat' is no option of impala; did you mean learning_rate?"),
        ("learning_rate=-1..1", "learning_rate is -1.0; use 0 to 100"),
        ("learning_rate=1e-3..1e-5", "0.001 is not below 1e-05"),
        ("learning_rate=0..1:log", "a log scale begins above 0"),
        ("learning_rate=1..2:lin", "'lin' is no scale; use NAME=LOW..HIGH"),
        ("learning_rate=few..many", "'few' is not a finite number"),
        ("learning_rate", "has no values; use NAME=LOW..HIGH"),
        ("trajectory_steps=1.5..3", "'1.5' is not a whole number"),
        ("optimizer=adam,foo", "optimizer is unknown: 'foo'; use adam"),
        ("decay_learning_rate=on..off", "has no range; list its values"),
        ("decay_learning_rate=yes,no", "'yes' is not true or false"),
        ("hidden_sizes=64,64", "has one value; name several: NAME=64,64/256,256"),
        ("env=a,b", "it must be the same for all trials"),
    ],
)
def test_bad_words_are_one_line_before_anything_starts(word, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "impala", *RUN, *BUDGET, "--search", word]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_sweep_needs_a_budget_something_to_search_and_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(veldt.ConfigurationError, match="give every trial a budget"):
        veldt.sweep("impala", "CartPole-v1", ["gamma=0.9,0.99"])
    with pytest.raises(veldt.ConfigurationError, match="nothing is searched"):
        veldt.sweep("impala", "CartPole-v1", max_seconds=1)
    Path("sweeps/impala-CartPole-v1").mkdir(parents=True)
    held = {"search gamma": "0.5,0.6"}
    Path("sweeps/impala-CartPole-v1/sweep.json").write_text(json.dumps(held))
    with pytest.raises(veldt.ConfigurationError, match=r"a sweep with search gamma 0\.5,0\.6, not"):
        veldt.sweep("impala", "CartPole-v1", ["gamma=0.9,0.99"], max_seconds=1)


def test_values_have_the_type_of_their_option():
    words = ["hidden_sizes=64,64/256,256", "recurrent=none,gru", "seed=1..9", "gamma=0.9..0.99"]
    sizes, recurrent, seed, gamma = search_space([*words, "decay-learning-rate=on,off"][:4], "a2c")
    assert sizes.value("256,256") == (256, 256)
    assert sizes.proposal((64, 64)) == "64,64"
    assert recurrent.value("none") == "none"
    assert (type(seed.low), type(gamma.low), gamma.proposal(0.5)) == (int, float, None)
    [decay] = search_space(["decay-learning-rate=on,off"], "a2c")
    assert (decay.value("False"), decay.proposal(True)) == (False, "True")


@pytest.mark.parametrize("pruner", ["median", "halving", "none"])
def test_a_hopeless_trial_is_pruned_and_a_good_one_is_not(tmp_path, pruner):
    [dimension] = search_space(["learning_rate=1e-6..1e-1:log"], "impala")
    study = open_study(tmp_path, SweepOptions(pruner=pruner))
    for _ in range(3):
        trial = study.ask()
        dimension.suggest(trial)
        rungs = Rungs(trial)
        assert not any(rungs.should_prune(rung / 10, 100.0 * rung) for rung in range(1, 10))
        study.tell(trial, 1000.0)
    bad, good = Rungs(study.ask()), Rungs(study.ask())
    assert not bad.should_prune(0.1, 1.0)  # too early
    assert bad.should_prune(0.45, 1.0) == (pruner != "none")
    assert not good.should_prune(0.45, 500.0)


def test_a_killed_trial_is_repeated_and_its_torn_line_cut(tmp_path):
    space = search_space(["learning_rate=1e-6..1e-1:log"], "impala")
    study = open_study(tmp_path, SweepOptions())
    trial = study.ask()
    value = space[0].suggest(trial)
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"op_code": 6, "trial')  # as kill -9 leaves it
    (tmp_path / "journal.jsonl.lock").symlink_to("journal.jsonl")
    study = open_study(tmp_path, SweepOptions())
    study.tell(trial.number, state=TrialState.FAIL)
    study.enqueue_trial(study.trials[trial.number].params)
    assert num_counted(study) == 0
    assert space[0].suggest(study.ask()) == value
    options = {"architecture": "impala", "env": "CartPole-v1"}
    result = sweep_result(study, space, tmp_path, options, "median")
    assert [each.state for each in result.trials] == ["lost"]
    assert "1 lost and repeated" in result.text()
    assert "no trial has a score" in result.text()


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "veldt", *COMMAND],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background jobs, and so perhaps this suite, with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_sweep_survives_kill_9(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweeps" / "impala-CartPole-v1"
    process = start(tmp_path)
    deadline = time.monotonic() + 100
    while not list(folder.glob("trials/*/metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    stored = [json.loads(path.read_text()) for path in folder.glob("trials/*.pid")]
    assert stored

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ROOT)
    assert cli.main(COMMAND) == 0
    printed = capsys.readouterr().out
    assert "was running when the sweep was killed" in printed or "finished after" in printed
    assert not [each for each in stored if psutil.pid_exists(each["pid"])]

    result = json.loads((folder / "result.json").read_text())
    states = [trial["state"] for trial in result["trials"]]
    assert len(states) - states.count("lost") == 2
    lost = [trial for trial in result["trials"] if trial["state"] == "lost"]
    for trial in lost:
        again = [t for t in result["trials"] if t["number"] > trial["number"]]
        assert trial["values"] in [t["values"] for t in again]
    # The first trial is what would have been without a search.
    assert result["trials"][0]["values"] == {"learning_rate": 0.005, "trajectory_steps": 10}
    assert result["command"].startswith("veldt train impala --env CartPole-v1")
    assert f"repeat it: {result['command']}" in printed
    best = max(t["score"] for t in result["trials"] if t["state"] == "complete")
    assert result["best"]["score"] == best

    # The same command on a sweep that has ended makes no more trials.
    assert cli.main(COMMAND) == 0
    assert capsys.readouterr().out.splitlines()[-1] == printed.splitlines()[-1]
    assert json.loads((folder / "result.json").read_text())["trials"] == result["trials"]


@pytest.mark.slow
def test_interrupting_a_sweep_ends_its_runs(tmp_path):
    process = start(tmp_path)
    folder = tmp_path / "sweeps" / "impala-CartPole-v1" / "trials"
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.pid")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for path in folder.glob("*.pid"):
        assert not psutil.pid_exists(json.loads(path.read_text())["pid"])
