# SPDX-License-Identifier: Apache-2.0
"""The command line as a new user meets it: every bad input is one line, exit code 2, no files."""

import json
import os
import re
import subprocess
import sys

import pytest
from commands import ROOT, run

from veldt.architectures import ARCHITECTURES, OTHER_NAMES, load
from veldt.cli import main as cli
from veldt.cli.parsers import Parser, add_fields, run_parser
from veldt.options import RunOptions
from veldt.options.fields import option_fields, read_mapping

CARTPOLE = ("--env", "CartPole-v1")
SERIAL = ("--backend", "serial", "--num-actors", "1", "--envs-per-actor", "4")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a command that must be refused; returns its one line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        before = set(tmp_path.rglob("*"))
        assert cli.main(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("veldt: ")
        assert err.count("\n") == 1
        assert set(tmp_path.rglob("*")) == before
        return err

    return run


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((), "choose a command"),
        (("trian",), "did you mean train?"),
        (("train",), "name an architecture"),
        (("train", "impla", *CARTPOLE), "did you mean impala?"),
        (("train", "impala"), "--env"),
        (("train", "impala", "--env", "CartPol-v1", *SERIAL), "did you mean CartPole-v1"),
        (("train", "impala", "--env", "nowhere:make", *SERIAL), "cannot import 'nowhere'"),
        (("train", "impala", *CARTPOLE, "--learning-rat", "1"), "did you mean --learning-rate?"),
        (("train", "impala", *CARTPOLE, "--num-actors", "x"), "'x' is not a whole number"),
        (("train", "impala", *CARTPOLE, "--learning-rate", "fast"), "'fast' is not a finite"),
        (("train", "impala", *CARTPOLE, "--num-actors", "-1"), "use 1 to 4,096"),
        (("train", "impala", *CARTPOLE, "--backend", "thread"), "'serial', 'process', 'ray'"),
        (("train", "impala", *CARTPOLE, "--preset", "doom", *SERIAL), "control"),
        (("train", "impala", *CARTPOLE, "--env-options", "gravity"), "not key=value"),
        (("train", "impala", *CARTPOLE, "surplus"), "unexpected 'surplus'"),
        (("train", "dqn", "--env", "Pendulum-v1", *SERIAL), "discrete"),
        (("train", "impala", *CARTPOLE, *SERIAL, "--batch-trajectories", "50"), "queue_traj"),
        (("train", "impala", *CARTPOLE, *SERIAL, "--run-dir", "/etc/passwd/run"), "--run-dir"),
        (("train", "a2c", *CARTPOLE, "--epochs", "4"), "a2c learns once from a batch; use ppo"),
        (("train", "rainbow", *CARTPOLE), "use apex, which has its double, dueling, n-step"),
        (("train", "impala", "--env", "Pong-ramNoFrameskip-v4", *SERIAL), "use ALE/Pong-v5"),
        (("train", "impala", "--env", "BreakoutDeterministic-v4", *SERIAL), "use ALE/Breakout-v5"),
        (("train", "impala", *CARTPOLE, "--network", "nets:big", *SERIAL), "cannot import"),
        (("resume", "missing"), "not a run directory"),
        (("resume", "zoo:cart_pole"), "train with --from zoo:cart_pole"),
        (("play", "zoo:pole"), "the zoo has acrobot, cart_pole, "),
        (("evaluate", "."), "not a run directory"),
        (("evaluate", ".", "--episodes", "0"), "1 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_with_the_remedy(refused, arguments, remedy):
    assert remedy in refused(*arguments)


@pytest.mark.slow
def test_what_needs_no_torch_does_not_import_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": ROOT}
    for arguments in (["list"], ["--help"], ["train", "--help"], ["train", "a2c"]):
        code = (
            "import sys; from veldt.cli.main import main\n"
            "try: main(sys.argv[1:])\n"
            "except SystemExit: pass\n"
            "sys.exit('torch' in sys.modules)"
        )
        start = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(start, capture_output=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, arguments


@pytest.mark.parametrize("method", OTHER_NAMES)
def test_the_architecture_that_a_method_is_answered_with_exists(method):
    found = re.match(r"(\w+)((?: --\w+ \w+)*)", OTHER_NAMES[method])
    run_parser("train", found[1]).parse([found[1], "--env", "X", *found[2].split()])


def test_list_and_describe(capsys):
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(ARCHITECTURES)
    assert {"year", "paper", "new", "file"} <= set(rows[0])
    assert all(row["new"] in text for row in rows)
    assert cli.main(["describe", "impala", "--num-actors", "3"]) == 0
    assert "actor x3" in capsys.readouterr().out


def test_every_option_is_explained_and_hides_no_other():
    common = option_fields(RunOptions)
    for name in ARCHITECTURES:
        own = option_fields(load(name).config)
        assert all(option.text for option in (*common.values(), *own.values())), name
        assert not set(own) & set(common), name


def test_values_are_read_by_the_type_of_their_field():
    parser = Parser("veldt train")
    add_fields(parser, RunOptions)
    text = (
        "--env X --network-options hidden_sizes=64x32 --total-env-steps 1e6 --target-return -100"
        " --no-quiet --wrappers time_limit=none --env-options a=1,b=0.5 --env-options c=true,d=word"
    )
    assert parser.parse(text.split()) == {
        "env": "X",
        "network_options": {"hidden_sizes": (64, 32)},
        "wrappers": {"time_limit": None},
        "total_env_steps": 1_000_000,
        "target_return": -100.0,
        "quiet": False,
        "env_options": {"a": 1, "b": 0.5, "c": True, "d": "word"},
    }
    assert read_mapping("") == {}


@pytest.mark.slow
def test_train_with_json_prints_json_lines_only(tmp_path):
    arguments = ("--total-env-steps", "500", "--json", "--run-dir", "run", *SERIAL)
    done = run(tmp_path, "train", "impala", *CARTPOLE, *arguments)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "result"
    saved = json.loads((tmp_path / "run/result.json").read_text())
    assert saved["env_steps"] == events[-1]["env_steps"] >= 500
    # It counts from the start of the process: Python and torch were imported before the first step.
    assert saved["start_seconds"] > 0.3

    again = run(tmp_path, "train", "impala", *CARTPOLE, *arguments)
    assert again.returncode == 0
    assert json.loads(again.stdout.splitlines()[-1])["env_steps"] == saved["env_steps"]

    played = run(tmp_path, "evaluate", "run", "--episodes", "3", "--json")
    assert played.returncode == 0, played.stderr
    assert len(json.loads(played.stdout)["returns"]) == 3
