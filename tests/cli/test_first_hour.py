# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a newcomer's first hour ends with one line that shows the way out.

Scripts without a guard, programs from stdin, classes from a prompt and own networks beside the user
are in tests/run/test_main_guard.py; a class from a notebook's cell in tests/test_notebook.py;
processes that keep dying, which end the run with a failure, in tests/backends/test_faults.py; the
short help in test_help.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import veldt
from veldt.architectures import OTHER_NAMES
from veldt.cli import main as cli
from veldt.cli.parsers import run_parser

ROOT = Path(veldt.__file__).parent.parent
MESSAGES = {
    "train a2c --env CartPole-v1 --epochs 4": "a2c learns once from a batch; use ppo",
    "train apex --env Pendulum-v1 --algorithm sac": "use sac or td3",
    "train rainbow --env CartPole-v1": "use apex, which has its double, dueling, n-step",
    "train impala --env PongNoFrameskip-v4": "gives raw frames; use ALE/Pong-v5",
    "train impala --env BreakoutDeterministic-v4": "gives raw frames; use ALE/Breakout-v5",
    "train impala --env Pong-ramNoFrameskip-v4": "gives raw frames; use ALE/Pong-v5",
    "train impala --env CartPole-v1 --network nets:big": "network 'nets:big' cannot be imported",
}
WITHOUT = "import sys; sys.modules['{module}'] = None; from veldt.cli.main import main;"


@pytest.mark.parametrize("command", MESSAGES)
def test_one_line_with_the_remedy_before_anything_starts(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command.split(), "--backend", "serial"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert MESSAGES[command] in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", OTHER_NAMES)
def test_the_option_that_a_method_is_answered_with_is_there(method):
    found = re.match(r"(\w+)((?: --\w+ \w+)*)", OTHER_NAMES[method])
    run_parser("train", found[1]).parse([found[1], "--env", "X", *found[2].split()])


def ran(folder: Path, *words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-m", "veldt"]
    if without:
        start = ["-c", WITHOUT.format(module=without) + "sys.exit(main(sys.argv[1:]))"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
def test_a_video_without_what_draws_it_names_the_extra(tmp_path):
    veldt.train(
        *("impala", "CartPole-v1"),
        backend="serial",
        total_env_steps=100,
        evaluation_episodes=0,
        run_dir=str(tmp_path / "run"),
    )
    done = ran(tmp_path, *("evaluate", "run", "--episodes", "1", "--video"), without="pygame")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert 'pip install "veldt[classic]"' in done.stderr


@pytest.mark.slow
def test_an_old_atari_id_without_the_extra_names_both(tmp_path):
    done = ran(tmp_path, *("train", "impala", "--env", "PongNoFrameskip-v4"), without="ale_py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert 'pip install "veldt[atari]", and use ALE/Pong-v5' in done.stderr
