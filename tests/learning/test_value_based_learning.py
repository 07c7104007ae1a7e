# SPDX-License-Identifier: Apache-2.0
"""The value-based line learns: fixed seeds on the serial backend, so the same result everywhere."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # half a minute where others work


@pytest.mark.parametrize("architecture", ["dqn", "apex"])
def test_greedy_episodes_get_long_with_the_default_preset(architecture, train):
    """Training episodes are cut short by held random actions; chance is 22."""
    assert train(architecture, total_env_steps=40_000).evaluation_return > 150


@pytest.mark.parametrize(
    ("architecture", "env", "target", "budget", "own"),
    [
        ("gorila", "CartPole-v1", 150, 700_000, {"num_shards": 2}),
        ("gorila", "CartPole-v1", 150, 400_000, {"replay": "global", "num_shards": 1}),
        ("apex", "Pendulum-v1", -600, 80_000, {}),  # chance -1200
        ("pqn", "CartPole-v1", 300, 250_000, {}),
        ("pqn", "veldt/Catch-v0", 0.9, 60_000, {"preset": "control"}),
    ],
    ids=["gorila-bundled", "gorila-global", "apex-dpg", "pqn-vector", "pqn-image"],
)
def test_training_episodes_reach_the_target(architecture, env, target, budget, own, train):
    train(architecture, env, target_return=target, total_env_steps=budget, **own)
