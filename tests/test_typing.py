# SPDX-License-Identifier: Apache-2.0
"""What editors and type checkers of a user know: names, options and results."""

import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import veldt

ROOT = Path(veldt.__file__).parent.parent
PROJECT = """
from pathlib import Path
from typing import Any

import veldt

result: veldt.RunResult = veldt.train("ppo", env="CartPole-v1", total_env_steps=3, epochs=2)
scores: list[float] = veldt.evaluate(result.run_dir, episodes=3).returns
again = veldt.resume(result.run_dir, max_seconds=9.0)
best = veldt.sweep("ppo", "CartPole-v1", ["gamma=0.9,0.99"], trials=2, max_seconds=9).best
given: veldt.TrainOptions = {"seed": 1, "optimizer_options": {"momentum": 0.9}}
veldt.train("ppo", "CartPole-v1", **given)
own: dict[str, Any] = {"temperature": 3.0}
veldt.train(Path("my_ppo.py"), "CartPole-v1", **own)
"""
WRONG = """
veldt.train("ppo", env="CartPole-v1", total_env_stepss=3)
veldt.train("ppo", env="CartPole-v1", seed="one")
veldt.resume("runs/pole", learning_rate=1.0)
"""


def test_completion_and_help_list_every_name():
    assert set(dir(veldt)) == {*veldt.__all__, "__version__"}
    shown = pydoc.plain(pydoc.render_doc(veldt))
    assert "train(" in shown
    assert "class RunResult" in shown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_finds_a_misspelt_option_in_a_small_project(tmp_path):
    (tmp_path / "project.py").write_text(PROJECT + WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", ROOT / ".mypy_cache/user", "project.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    wrong = [line for line in done.stdout.splitlines() if " error: " in line]
    first = PROJECT.count("\n") + 2
    assert {line.split(":")[1] for line in wrong} == {str(first + n) for n in range(3)}, done.stdout
    assert "total_env_stepss" in wrong[0]
