# SPDX-License-Identifier: Apache-2.0
"""veldt.train and veldt.evaluate: the same runs, results and refusals as the command line's."""

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import veldt
from veldt.architectures import load
from veldt.options import RunOptions
from veldt.run import plan as resolve

SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 2}


def make_cart(length: float = 0.5) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.unwrapped.length = length
    return env


def test_evaluate_plays_the_saved_weights(short_run):
    first = veldt.evaluate(short_run, episodes=5, seed=3)
    again = veldt.evaluate(short_run, episodes=5, seed=3)
    other = veldt.evaluate(short_run, episodes=5, seed=4)
    assert first == again
    assert first.returns != other.returns
    assert len(first.returns) == 5
    np.testing.assert_allclose(
        [first.mean, first.std, first.min, first.max],
        [np.mean(first.returns), np.std(first.returns), min(first.returns), max(first.returns)],
    )
    assert f"{first.mean:.1f} over 5 episodes" in first.text()
    assert "mean return 0.250 over" in replace(first, returns=[0.25], mean=0.25).text()


def test_evaluate_draws_a_video(short_run, tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(short_run, "run")
    for run, folder in (("run", "run/videos"), ("zoo:pendulum", "videos")):
        file = Path(veldt.evaluate(run, 1, video=True).video)
        assert file.parent == Path(folder)
        begin = file.read_bytes()[:8]
        assert begin[4:] == b"ftyp" if file.suffix == ".mp4" else begin.startswith(b"GIF89a")


def test_evaluate_refuses_another_networks_weights(short_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(short_run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["options"]["network_options"]["hidden_sizes"] = [8]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(veldt.ConfigurationError, match="has changed since"):
        veldt.evaluate(copy)


def test_a_callable_environment_is_kept_by_name(tmp_path):
    path = tmp_path / "run"
    make = functools.partial(make_cart, length=0.7)
    veldt.train("impala", make, total_env_steps=100, run_dir=str(path), **SMALL)
    config = json.loads((path / "config.json").read_text())
    assert config["options"]["env"] == f"{__name__}:make_cart"
    assert veldt.evaluate(path, episodes=2).env == f"{__name__}:make_cart"


def test_a_lambda_runs_on_serial_but_cannot_be_evaluated_later(tmp_path):
    path = tmp_path / "run"
    veldt.train("impala", lambda: make_cart(), total_env_steps=100, run_dir=str(path), **SMALL)
    with pytest.raises(veldt.ConfigurationError, match="top level of a module"):
        veldt.evaluate(path)


def test_a_lambda_is_refused_where_it_would_have_to_travel(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(veldt.ConfigurationError, match="actor-0 cannot be sent") as refusal:
        veldt.train("impala", lambda: make_cart(), run_dir=str(path), envs_per_actor=4)
    assert "--backend serial" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "is_image", "device"),
    [
        ({}, False, "cpu"),
        ({}, True, "cuda"),
        ({"network": "module:function"}, False, "cuda"),
        ({"network_options": {"hidden_sizes": (64, 512)}}, False, "cuda"),
        ({"recurrent": "lstm", "network_options": {"recurrent_size": 1024}}, False, "cuda"),
        ({"device": "cpu"}, True, "cpu"),
    ],
)
def test_auto_uses_a_gpu_where_it_pays(monkeypatch, options, is_image, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    asked = RunOptions(env="CartPole-v1", **options)
    assert resolve._device(asked, load("impala"), is_image) == device


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_budget_ends_where_it_says(backend, tmp_path):
    sizes = {"num_actors": 2, "envs_per_actor": 8, "evaluation_episodes": 0, "backend": backend}
    run_dir = str(tmp_path / "run")
    result = veldt.train("impala", "CartPole-v1", total_env_steps=2000, run_dir=run_dir, **sizes)
    assert result.stopped_by == "env_steps"
    most = 8 if backend == "serial" else 800  # what two actors do until it is noticed
    assert 2000 <= result.env_steps < 2000 + most


def test_a_run_that_learned_nothing_says_so(tmp_path, capsys):
    short = {"backend": "serial", "total_env_steps": 20, "evaluation_episodes": 0}
    result = veldt.train("dqn", "CartPole-v1", run_dir=tmp_path / "run", quiet=False, **short)
    assert not result.trained
    assert json.loads((tmp_path / "run" / "result.json").read_text())["trained"] is False
    assert "0 updates: nothing was learned" in capsys.readouterr().out
