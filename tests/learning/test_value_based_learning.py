# SPDX-License-Identifier: Apache-2.0
"""The value-based line learns: fixed seeds on the serial backend, so the same result everywhere."""

from __future__ import annotations

import pytest

import veldt


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("architecture", "env", "target", "budget", "own"),
    [
        ("dqn", "CartPole-v1", 475, 400_000, {"preset": "control"}),
        ("gorila", "CartPole-v1", 200, 700_000, {"num_shards": 2}),
        ("gorila", "CartPole-v1", 200, 400_000, {"replay": "global", "num_shards": 1}),
        ("apex", "CartPole-v1", 300, 300_000, {"preset": "control"}),
        ("apex", "Pendulum-v1", -400, 80_000, {"algorithm": "dpg"}),
    ],
    ids=["dqn", "gorila-bundled", "gorila-global", "apex-dqn", "apex-dpg"],
)
def test_reaches_the_target(architecture, env, target, budget, own, tmp_path):
    result = veldt.train(
        architecture,
        env=env,
        backend="serial",
        seed=1,
        target_return=target,
        total_env_steps=budget,
        run_dir=str(tmp_path),
        **own,
    )
    assert result.reached_target, (result.mean_return_100, result.evaluation_return)
