# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an environment or a run directory is said in one line that names it; what an
environment prints or where it goes spoils nothing."""

import json
import os
import subprocess
import sys
import time

import commands
import faulty_environments as faulty
import pytest

import veldt
from veldt.cli import main as cli
from veldt.environments import EnvironmentFactory
from veldt.options import RunOptions
from veldt.run.driver import Run
from veldt.run.plan import make_plan

SMALL = (
    *("--backend", "serial", "--num-actors", "1", "--envs-per-actor", "2"),
    *("--evaluation-episodes", "2", "--total-env-steps", "200"),
)
ENVIRONMENT = """
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (faulty.raising_factory, "FileNotFoundError: no such robot"),
        (faulty.unspeakable_factory, "SpeechlessError: (its text cannot be read: RuntimeError)"),
        (faulty.OldStep, "step() returned 4 values instead of 5"),
        (faulty.never_resetting, "does not stand up"),
        (faulty.WrongShape, "an observation of shape (5,) where its observation space is Box"),
        (faulty.WrongEntry, "observation['speed'] of shape (2,) where its observation space is"),
    ],
)
def test_an_environment_that_cannot_work_is_named_before_anything_starts(make, words):
    with pytest.raises(veldt.ConfigurationError) as refused:
        EnvironmentFactory(make).spec()
    assert words in str(refused.value)
    assert f"faulty_environments:{make.__name__}" in str(refused.value)
    assert "\n" not in str(refused.value)


def refusal(capsys, *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert err.startswith("veldt: ")
    assert err.count("\n") == 1
    return err


EVALUATE = f"{sys.executable} -m veldt evaluate run"
TRAIN = f"{sys.executable} -m veldt train impala --env CartPole-v1 --num-actors 1 --quiet"
TRAIN += " --total-env-steps 100 --evaluation-episodes 0 --run-dir run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (f"mkdir gone; cd gone; rmdir ../gone; {TRAIN}", 2, "directory has been deleted"),
        (f"mkdir gone; cd gone; rmdir ../gone; {EVALUATE}", 2, "directory has been deleted"),
        (f"T=$PWD/{'x' * 100}; mkdir $T; TMPDIR=$T {TRAIN}", 2, "set TMPDIR to another, shorter"),
        (f"mkdir run; touch run/checkpoints; {TRAIN}", 0, "no checkpoint was written"),
        (f"{TRAIN} <&- >&-", 0, ""),
    ],
)
def test_a_bad_place_is_said_without_a_traceback(script, code, words, tmp_path):
    path = {**os.environ, "PYTHONPATH": commands.ROOT}
    done = subprocess.run(
        script, shell=True, cwd=tmp_path, env=path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert bool(words) == bool(done.stderr)


def test_a_start_that_takes_all_the_time_is_said_and_ends_the_run(tmp_path):
    options = RunOptions("CartPole-v1", max_seconds=50.0, quiet=True, run_dir=str(tmp_path / "run"))
    began = time.monotonic() - 60.0
    result = Run(make_plan("impala", options, {}, began=began), began).execute()
    assert (result.stopped_by, result.env_steps) == ("seconds", 0)
    assert "the start took all of --max-seconds" in (tmp_path / "run/events.jsonl").read_text()


def test_an_environment_that_changed_is_not_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "width.txt").write_text("3")
    env = ("--env", "faulty_environments:Wider")
    assert cli.main(["train", "impala", *env, *SMALL, "--quiet", "--run-dir", "run"]) == 0
    (tmp_path / "width.txt").write_text("4")
    words = refusal(capsys, "resume", "run", "--total-env-steps", "400")
    assert "the observation of the environment 'faulty_environments:Wider' has changed" in words
    assert "vector[3] to observation vector[4]" in words


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_environment_that_prints_and_moves_spoils_no_json_and_no_relative_path(
    backend, tmp_path
):
    words = ("train", "impala", "--env", "faulty_environments:Rude", *SMALL, "--json")
    done = commands.run(tmp_path, *words, "--run-dir", "run", "--backend", backend)
    assert done.returncode == 0, done.stderr
    assert commands.saved(tmp_path / "run")[1]
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events[-1] == "result"
    assert "debug: step" in done.stderr
    done = commands.run(tmp_path, "evaluate", "run", "--episodes", "2", "--json")
    assert len(json.loads(done.stdout)["returns"]) == 2


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A run on an environment in a file beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_cart.py").write_text(ENVIRONMENT)
    env = ("--env", "my_cart:make")
    assert cli.main(["train", "impala", *env, *SMALL, "--quiet", "--run-dir", "run"]) == 0
    return tmp_path


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_code_that_changed_since_training_runs_only_when_it_is_trusted(trained, command, capsys):
    assert cli.main([command, "run"]) == 0
    capsys.readouterr()
    (trained / "my_cart.py").write_text(ENVIRONMENT + "\n# another line\n")
    words = refusal(capsys, command, "run")
    assert "my_cart.py is not what it was when the run was trained" in words
    assert "--trust-code" in words
    assert cli.main([command, "run", "--trust-code"]) == 0


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("env", "os:system", "part of Python"),
        ("env", "brought:make", "lies in the run directory itself"),
        ("env", "unrecorded:make", "there is no record of"),
        ("architecture", "run/brought.py", "lies in the run directory itself"),
    ],
)
def test_code_that_a_run_directory_brings_or_invents_does_not_run(
    trained, key, name, words, capsys
):
    canary = trained / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n" + ENVIRONMENT
    (trained / "run/brought.py").write_text(code)
    (trained / "unrecorded.py").write_text(code)
    path = trained / "run/config.json"
    config = json.loads(path.read_text())
    config["options"]["env_options"] = {"command": f"touch {canary}"}
    (config["options"] if key == "env" else config)[key] = name
    path.write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(trained / "run")
        assert words in refusal(capsys, "evaluate", "run")
        assert words in refusal(capsys, "resume", "run")
    assert not canary.exists()
