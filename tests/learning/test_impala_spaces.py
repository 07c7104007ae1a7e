# SPDX-License-Identifier: Apache-2.0
"""IMPALA learns on every kind of space: continuous, multi-discrete, masked dictionaries, memory."""

from typing import Any

import numpy as np
import pytest
from counting_environments import MaskedDictEnvironment
from gymnasium import spaces

import veldt
from veldt.environments.small_tasks import Task


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


def train(tmp_path, env, **options):
    return veldt.train(
        "impala", env=env, backend="serial", seed=1, run_dir=str(tmp_path / "run"), **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "target", "options"),
    [
        (MultiDiscreteEnvironment, 12.0, {}),  # best 16, chance 5.8
        (MaskedDictEnvironment, 13.0, {}),  # best 20, chance 6.7
        (
            "veldt/Memory-v0",
            0.9,
            {"recurrent": "lstm", "network_options": {"recurrent_size": 32}},
        ),  # best 1, chance 0
        # A random policy gets about -1200; solved is about -150.
        (
            "Pendulum-v1",
            -700.0,
            {"normalize_observations": True, "gamma": 0.95, "trajectory_steps": 32},
        ),
    ],
)
def test_learns(env, target, options, tmp_path):
    result = train(tmp_path, env, target_return=target, total_env_steps=1_500_000, **options)
    assert result.reached_target, (result.mean_return_100, result.evaluation_return)


@pytest.mark.slow
def test_memory_is_needed(tmp_path):
    """The same task, network and twice the steps that memory needs, without memory: chance."""
    result = train(tmp_path, "veldt/Memory-v0", total_env_steps=60_000, evaluation_episodes=100)
    assert abs(result.mean_return_100) < 0.4
    assert abs(result.evaluation_return) < 0.4
