# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep`: words are checked, trials are pruned, and kill -9 costs the trials under way."""

import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from commands import ROOT, start, wait_until

import veldt
from veldt.cli import main as cli
from veldt.run.process import Signals
from veldt.sweeps import command
from veldt.sweeps.command import Trials, ended_trials, open_study, recover, sweep_result
from veldt.sweeps.search import SweepOptions, search_space
from veldt.telemetry.result import RunResult

pytest.importorskip("optuna")
RUN = ("--env", "CartPole-v1", "--backend", "serial", "--num-actors", "1", "--envs-per-actor", "8")
BUDGET = ("--total-env-steps", "8000", "--evaluation-episodes", "2")
SEARCH = ("--search", "learning_rate=1e-6..1e-1:log", "--search", "trajectory_steps=5,10")
COMMAND = ["sweep", "impala", *RUN, *BUDGET, *SEARCH, "--trials", "2", "--parallel", "2"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rat=1..2", "'learning_rat' is no option of impala; did you mean learning_rate?"),
        ("learning_rate=-1..1", "learning_rate is -1.0; use 0 to 100"),
        ("learning_rate=1e-3..1e-5", "low=0.001, high=1e-05"),
        ("learning_rate=0..1:log", "low=0.0"),
        ("learning_rate=1..2:lin", "'lin' is no scale; use NAME=LOW..HIGH"),
        ("learning_rate=few..many", "'few' is not a finite number"),
        ("learning_rate", "has no values; use NAME=LOW..HIGH"),
        ("optimizer=adam,foo", "optimizer is unknown: 'foo'; use adam"),
        ("decay_learning_rate=on..off", "has no range; list its values"),
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
    space = search_space([*words, "decay-learning-rate=on,off"], "a2c")
    sizes, decay = space["hidden_sizes"], space["decay_learning_rate"]
    assert (sizes.value("256,256"), sizes.parameter((64, 64))) == ((256, 256), "64,64")
    assert (decay.value("False"), decay.parameter(True)) == (False, "True")
    assert space["recurrent"].value("none") == "none"
    assert (type(space["seed"].distribution.low), space["gamma"].parameter(0.5)) == (int, None)


@pytest.mark.parametrize("pruner", ["median", "halving", "none"])
def test_a_hopeless_trial_is_pruned_and_a_good_one_is_not(tmp_path, monkeypatch, pruner):
    study = open_study(tmp_path, SweepOptions(pruner=pruner))
    trials = Trials(study, tmp_path, {}, {}, print, False, Signals())
    reports: list[tuple[float, float]] = []

    def pruned(*given: tuple[float, float]) -> bool:
        """Whether a run is pruned whose progress and score are these, one after the other."""
        reports[:] = given
        run = SimpleNamespace(poll=lambda: None if reports else 0)
        trial = study.ask()
        note = trials.wait(trial, run, tmp_path)
        study.tell(trial, 1000.0)
        return "of the budget" in note

    monkeypatch.setattr(command, "progress", lambda *_: reports.pop(0))
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.0)
    for _ in range(3):
        assert not pruned(*((rung / 10, 100.0 * rung) for rung in range(1, 11)))
    assert not pruned((0.1, 1.0))  # too early
    assert pruned((0.45, 1.0)) == (pruner != "none")
    assert not pruned((0.45, 500.0))


def test_a_killed_trial_is_repeated_and_its_torn_line_cut(tmp_path):
    space = search_space(["learning_rate=1e-6..1e-1:log"], "impala")
    distributions = {name: each.distribution for name, each in space.items()}
    params = open_study(tmp_path, SweepOptions()).ask(distributions).params
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"op_code": 6, "trial')  # as kill -9 leaves it
    (tmp_path / "journal.jsonl.lock").symlink_to("journal.jsonl")
    study = open_study(tmp_path, SweepOptions())
    recover(study, tmp_path, lambda text: None)
    assert ended_trials(study) == []
    trial = study.ask(distributions)
    assert trial.params == params
    options = {"architecture": "impala", "env": "CartPole-v1"}
    result = sweep_result(study, space, tmp_path, options, "median")
    assert result.trials == []
    assert "no trial has a score" in result.text()
    study.tell(trial, 9.0)
    run_dir = command.run_dir_of(tmp_path, trial.number)
    run_dir.mkdir(parents=True)
    RunResult("impala", "CartPole-v1", "serial", 0, 20).save(run_dir / "result.json")
    assert "0 updates" in sweep_result(study, space, tmp_path, options, "median").text()


def runs_in(folder: Path) -> list[psutil.Process]:
    """Processes of the trials of sweeps that were started in this folder."""
    found = psutil.process_iter(["cmdline", "cwd"])
    of_folder = (each for each in found if each.info["cwd"] == str(folder))
    return [each for each in of_folder if "--run-dir" in each.info["cmdline"]]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_sweep_survives_kill_9(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweeps" / "impala-CartPole-v1"
    process = start(tmp_path, *COMMAND)
    deadline = time.monotonic() + 100
    while not list(folder.glob("trials/*/metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert (left := runs_in(tmp_path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ROOT)
    assert cli.main(COMMAND) == 0
    printed = capsys.readouterr().out
    assert "was running when the sweep was killed" in printed or "finished after" in printed
    assert not [each for each in left if each.is_running()]

    result = json.loads((folder / "result.json").read_text())
    assert len(result["trials"]) == 2
    # The first trial, repeated or not, is what would have been without a search.
    defaults = {"learning_rate": 0.005, "trajectory_steps": 10}
    assert defaults in [trial["values"] for trial in result["trials"]]
    assert result["command"].startswith("veldt train --config ")
    assert f"repeat it: {result['command']}" in printed
    best = max(t["score"] for t in result["trials"] if t["state"] == "complete")
    assert result["best"]["score"] == best

    # The same command on a sweep that has ended makes no more trials.
    assert cli.main(COMMAND) == 0
    assert capsys.readouterr().out.splitlines()[-1] == printed.splitlines()[-1]
    assert json.loads((folder / "result.json").read_text())["trials"] == result["trials"]


@pytest.mark.slow
def test_interrupting_a_sweep_ends_its_runs(tmp_path):
    process = start(tmp_path, *COMMAND)
    folder = tmp_path / "sweeps" / "impala-CartPole-v1"
    wait_until(lambda: list(folder.glob("trials/*/config.json")), "a trial", process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not runs_in(tmp_path)
