# SPDX-License-Identifier: Apache-2.0
"""A user's own architecture, given as a file or a module, works wherever a name of ours does."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from commands import run

import veldt
from veldt import architectures
from veldt.architectures import ppo
from veldt.errors import ConfigurationError

SMALL = {"backend": "serial", "envs_per_actor": 4, "total_env_steps": 600, "evaluation_episodes": 1}


def write(path: Path) -> Path:
    """PPO under another name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ppo.__file__, path)
    return path


@pytest.fixture(autouse=True)
def _forget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def test_a_file_trains_like_the_original(tmp_path):
    write(tmp_path / "mine" / "own_ppo.py")
    own = veldt.train("mine/own_ppo.py", env="CartPole-v1", **SMALL)
    theirs = veldt.train("ppo", env="CartPole-v1", **SMALL)
    assert own.chosen["preset"] == theirs.chosen["preset"] == "vectors"
    assert own.parameters_sha256 == theirs.parameters_sha256
    assert Path(own.run_dir).name.startswith("own_ppo-CartPole-v1-")
    assert veldt.evaluate(own.run_dir, episodes=1).architecture == "mine/own_ppo.py"


@pytest.mark.slow
def test_node_processes_import_it(tmp_path):
    write(tmp_path / "mine" / "own_ppo.py")
    words = "train mine/own_ppo.py --env CartPole-v1 --envs-per-actor 4 --num-actors 1 --quiet"
    more = "--total-env-steps 400 --evaluation-episodes 0 --run-dir run"
    done = run(tmp_path, *words.split(), *more.split())
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["updates"] > 0


def test_what_cannot_be_used_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        architectures.load("nowhere.py")
    with pytest.raises(ConfigurationError, match="cannot import the architecture"):
        architectures.load("no.such.module")
    with pytest.raises(ConfigurationError, match="hidden by another module json"):
        architectures.load(str(write(tmp_path / "json.py")))
    renamed = write(tmp_path / "renamed.py")
    renamed.write_text(renamed.read_text().replace('presets("ppo"', 'presets("renamed"'))
    with pytest.raises(ConfigurationError, match="there are no presets renamed"):
        architectures.load(str(renamed))
    (tmp_path / "half.py").write_text("ARCHITECTURE = None\n")
    with pytest.raises(ConfigurationError, match="has no ARCHITECTURE"):
        architectures.load("half.py")
