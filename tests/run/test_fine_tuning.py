# SPDX-License-Identifier: Apache-2.0
"""`--from`: a run begins with what another one has learned, or says which part does not fit."""

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import veldt
from veldt.cli import main as cli
from veldt.networks import FlatParameters, tensors_of
from veldt.run.loading import restored

SMALL = {"num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}
STILL = {"learning_rate": 1e-30, "total_env_steps": 200, **SMALL}
"""Too slow to change a weight: what a run ends with is what it began with."""


def make_long_pole() -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.length = 1.0
    return env


def tensors(run: Path) -> dict[str, np.ndarray]:
    found = restored(run, "last")
    flat = FlatParameters(found.plan.topology.network.blank())
    flat.load(found.weights.vector)
    return {name: entry.detach().numpy() for name, entry in tensors_of(flat.module).items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    run = tmp_path_factory.mktemp("source") / "run"
    options = {"backend": "serial", "normalize_observations": True, "seed": 5, **SMALL}
    veldt.train("impala", "CartPole-v1", total_env_steps=800, run_dir=str(run), **options)
    return run


@pytest.mark.parametrize(
    "backend", ["serial", "process", pytest.param("ray", marks=pytest.mark.slow)]
)
def test_all_weights_and_statistics_come_along(source, tmp_path, backend):
    run = tmp_path / "run"
    veldt.train(
        "impala",
        make_long_pole if backend == "serial" else "CartPole-v1",
        from_run=f"{source}:last",
        backend=backend,
        normalize_observations=True,
        wrappers={"time_limit": 50},
        run_dir=str(run),
        **STILL,
    )
    before, after = tensors(source), tensors(run)
    trained = [name for name in before if "moments" not in name]
    assert len(trained) > 4
    for name in trained:
        np.testing.assert_allclose(after[name], before[name], atol=1e-20, err_msg=name)
    counts = [float(side["normalizer.moments.0.count"]) for side in (before, after)]
    assert counts[1] > counts[0] > 100  # it counts on from there


@pytest.mark.parametrize("name", ["dqn", "sample_factory"])
def test_an_encoder_serves_another_head_and_architecture(source, tmp_path, name):
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    options = {"normalize_observations": True, "backend": "serial", "preset": "control", **STILL}
    veldt.train(name, "CartPole-v1", from_run=f"{source}:encoder", run_dir=str(run), **options)
    veldt.train(name, "CartPole-v1", run_dir=str(fresh), **options)
    before, after, drawn = tensors(source), tensors(run), tensors(fresh)
    shared = [key for key in after if "encoder" in key and "moments" not in key]
    assert shared
    for key in after:
        if "moments" not in key:
            expected = (before if key in shared else drawn)[key]
            np.testing.assert_allclose(after[key], expected, atol=1e-20, err_msg=key)


def test_a_resumed_run_does_not_need_the_first_one(source, tmp_path):
    moved, run = tmp_path / "moved", tmp_path / "run"
    options = {"backend": "serial", "normalize_observations": True, **SMALL}
    shutil.copytree(source, moved)
    options |= {"from_run": str(moved), "total_env_steps": 400, "run_dir": str(run)}
    first = veldt.train("impala", "CartPole-v1", **options)
    shutil.rmtree(moved)
    more = veldt.resume(run, total_env_steps=600)
    assert more.env_steps > first.env_steps
    assert more.parameters_sha256 != first.parameters_sha256
    assert veldt.evaluate(run, episodes=1).returns


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("impala --env Acrobot-v1", "its observation is observation vector[4]"),
        ("impala --env CartPole-v1", "train with its normalize_observations=True,"),
        ("dqn --env CartPole-v1", "its head is policy_value, here it is q;"),
        (
            "impala --env CartPole-v1 --network-options hidden_sizes=8x8",
            "train with its hidden_sizes=64x64, or use --from RUN:best:encoder",
        ),
        ("impala --env CartPole-v1 --recurrent gru", "train with its recurrent=none,"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_starts(
    source, tmp_path, monkeypatch, capsys, arguments, says
):
    monkeypatch.chdir(tmp_path)
    words = arguments.split()
    if "normalize_observations" not in says:
        words.append("--normalize-observations")
    assert cli.main(["train", *words, "--from", str(source), "--backend", "serial"]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())
