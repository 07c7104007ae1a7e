# SPDX-License-Identifier: Apache-2.0
"""Environments that benchmarks need and no user trains on: slowed-down ones, and Deep Sea.

Name them from the repository's root, as `--env benchmarks.environments:sleeping --env-options
step_ms=1`.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from veldt.environments import EnvironmentFactory
from veldt.environments.factory import open_vector

SLEEPING = "benchmarks.environments:sleeping"

_DELAYS = 0xDE1A  # separates the random stream of delays from the others of a seed


class DelayedVector(VectorWrapper):
    """Sleeps in each step as long as its slowest environment would take; uses no core for it.

    With `probability`, the step of one environment takes `straggle_ms` more."""

    def __init__(
        self, env: VectorEnv, step_ms: float, probability: float = 0.0, straggle_ms: float = 0.0
    ) -> None:
        super().__init__(env)
        self._step_ms, self._probability, self._straggle_ms = step_ms, probability, straggle_ms
        self._random = np.random.default_rng(_DELAYS)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng([seed, _DELAYS])
        return self.env.reset(seed=seed, options=options)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        time.sleep(self.longest_seconds())
        return self.env.step(actions)

    def longest_seconds(self) -> float:
        straggles = self._random.random() >= (1.0 - self._probability) ** self.num_envs
        return (self._step_ms + self._straggle_ms * straggles) / 1e3


def sleeping(
    num_envs: int,
    base: str = "CartPole-v1",
    step_ms: float = 1.0,
    probability: float = 0.0,
    straggle_ms: float = 0.0,
    vectorization: str = "auto",
) -> DelayedVector:
    """Any environment, slowed down. All environments of an actor step at the same time."""
    opened = open_vector(EnvironmentFactory(base, vectorization=vectorization), num_envs, seed=0)
    vector = DelayedVector(opened.env, step_ms, probability, straggle_ms)
    vector.metadata = {**opened.env.metadata, "autoreset_mode": AutoresetMode(opened.autoreset)}
    return vector


def slow_cartpole(num_envs: int) -> DelayedVector:
    """CartPole whose steps take 5 ms longer."""
    return sleeping(num_envs, step_ms=5.0)


class DeepSea(gymnasium.Env):
    """bsuite's Deep Sea: each step sinks by a row, to the left or, for a small price, to the right.

    A treasure lies in the last corner, which only going right every time reaches; which action
    leads right differs between cells. Best 0.99; chance finds the treasure in one of 2^size
    episodes."""

    price = 0.01

    def __init__(self, size: int = 8) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._size, self._right = size, self.actions_to_the_right(size)

    @staticmethod
    def actions_to_the_right(size: int) -> np.ndarray:
        """By row and column, the same in every environment of a size."""
        return np.random.default_rng(size).integers(2, size=(size, size))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_right = int(action) == self._right[self._row, self._column]
        found = bool(is_right) and self._row == self._column == self._size - 1
        reward = float(found) - self.price / self._size * float(is_right)
        self._column = max(self._column + (1 if is_right else -1), 0)
        self._row += 1
        return self._observe(), reward, self._row == self._size, False, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros((self._size, self._size), np.float32)
        if self._row < self._size:
            seen[self._row, self._column] = 1.0
        return seen.ravel()
