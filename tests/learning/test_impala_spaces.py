# SPDX-License-Identifier: Apache-2.0
"""Every kind of space is learned: continuous, multi-discrete, masked dictionaries, memory."""

from typing import Any

import numpy as np
import pytest
from counting_environments import MaskedDictEnvironment
from gymnasium import spaces

from veldt.environments.small_tasks import Task

pytestmark = pytest.mark.slow


class MultiDiscreteEnvironment(Task):
    """Repeat the digits that the observation shows as one-hot vectors; the reward is the share of
    right ones. Best 16, chance 16 * mean(1/2, 1/3, 1/4) = 5.8."""

    length = 16
    sizes = (2, 3, 4)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (sum(self.sizes),), np.float32)
        self.action_space = spaces.MultiDiscrete(list(self.sizes))

    def _begin(self) -> None:
        self._advance()

    def _advance(self) -> None:
        self._digits = self.np_random.integers(self.sizes)

    def _observe(self) -> np.ndarray:
        shown = [np.eye(size)[digit] for size, digit in zip(self.sizes, self._digits, strict=True)]
        return np.concatenate(shown).astype(np.float32)

    def _reward(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self._digits))


MEMORY = {"recurrent": "lstm", "network_options": {"recurrent_size": 32}}
PENDULUM = {"normalize_observations": True, "gamma": 0.95, "trajectory_steps": 32}


@pytest.mark.parametrize(
    ("architecture", "env", "target", "options"),
    [
        ("impala", MultiDiscreteEnvironment, 12.0, {}),  # best 16, chance 5.8
        ("impala", MaskedDictEnvironment, 13.0, {}),  # best 20, chance 6.7
        ("impala", "veldt/Memory-v0", 0.9, MEMORY),  # best 1, chance 0
        ("seed_rl", "veldt/Memory-v0", 0.95, MEMORY),  # the server keeps the state
        ("r2d2", "veldt/Memory-v0", 0.95, MEMORY),
        ("impala", "Pendulum-v1", -700.0, PENDULUM),  # chance -1200, solved about -150
    ],
)
def test_learns(architecture, env, target, options, train):
    steps = 1_500_000 if architecture == "impala" else 60_000
    train(architecture, env, target_return=target, total_env_steps=steps, **options)


def test_memory_is_needed(train):
    """The same task, network and twice the steps that memory needs, without memory: chance."""
    short = {"total_env_steps": 60_000, "evaluation_episodes": 100}
    result = train("impala", "veldt/Memory-v0", **short)
    assert abs(result.mean_return_100) < 0.4
    assert abs(result.evaluation_return) < 0.4
