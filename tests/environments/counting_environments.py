# SPDX-License-Identifier: Apache-2.0
"""Environments that count, so that every row can be checked by hand, and one with masks.

The observation names the row: [episode, step in the episode, environment]. Wrong, missing or
doubled rows, and observations of the wrong episode, show at once.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from veldt.environments.small_tasks import Task

DEFAULT_LENGTHS = (3, 5, 1, 4)


def _spaces() -> tuple[spaces.Box, spaces.Discrete]:
    return spaces.Box(0.0, np.inf, (3,), np.float32), spaces.Discrete(2)


class CountingVectorEnvironment(VectorEnv):
    """Reward = number of the step (1, 2, ...); even episodes terminate, odd ones are truncated.

    Environment i (its seed) makes episode e last lengths[(e + i) % len(lengths)] steps. Every
    policy scores the same. A native vector environment, in all three autoreset modes."""

    def __init__(
        self,
        num_envs: int,
        lengths: tuple[int, ...] = DEFAULT_LENGTHS,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space, self.single_action_space = _spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = autoreset_mode
        self._lengths = np.array(lengths)
        self._identity = np.arange(num_envs)
        self._episode = np.full(num_envs, -1)
        self._count = np.zeros(num_envs, dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=bool)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._identity = seed + np.arange(self.num_envs)
            self._episode[:] = -1
        self._begin((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool)))
        return self._observation(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        late = self._over.copy()
        if late.any() and self._mode != AutoresetMode.NEXT_STEP:
            raise gymnasium.error.ResetNeeded("stepped beyond the end of an episode")
        self._begin(late)
        self._count[~late] += 1
        lengths = self._lengths[(self._episode + self._identity) % len(self._lengths)]
        self._over = ~late & (self._count == lengths)
        reward = np.where(late, 0.0, self._count)
        even = self._episode % 2 == 0
        terminated, truncated = self._over & even, self._over & ~even
        info: dict[str, Any] = {}
        if self._mode == AutoresetMode.SAME_STEP and self._over.any():
            info = {"final_obs": self._observation(), "_final_obs": self._over.copy()}
            self._begin(self._over)
        return self._observation(), reward, terminated, truncated, info

    def _begin(self, rows: np.ndarray) -> None:
        rows = rows.copy()
        self._episode[rows] += 1
        self._count[rows] = 0
        self._over[rows] = False

    def _observation(self) -> np.ndarray:
        columns = (self._episode, self._count, self._identity)
        return np.stack(columns, axis=1).astype(np.float32)


class CountingEnvironment(gymnasium.Env):
    """One of the same environments by itself."""

    def __init__(self, lengths: tuple[int, ...] = DEFAULT_LENGTHS) -> None:
        self.observation_space, self.action_space = _spaces()
        self._vector = CountingVectorEnvironment(1, lengths, AutoresetMode.DISABLED)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self._vector.reset(seed=seed)
        return observation[0], info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._vector.step(np.array([action]))
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info


def same_step_vector(make: Callable[[], gymnasium.Env]) -> Callable[[int], VectorEnv]:
    """A user's own vector of copies, which resets within the step that ends an episode."""

    def made(num_envs: int) -> VectorEnv:
        return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    return made


MODES = {"next_step": lambda make: make, "same_step": same_step_vector}
"""By autoreset mode, what an EnvironmentFactory takes for the environments that `make` returns."""


class MaskedDictEnvironment(Task):
    """Dict observation with an action mask: half of the actions are allowed, others raise.

    The right action is `digit`, or the next one when the vector's first entry is negative. Best 20
    (1 per step), chance among allowed actions 20/3."""

    length = 20
    num_actions = 6

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(self.num_actions),
                "digit": spaces.Discrete(self.num_actions),
                "vector": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(self.num_actions)

    def _begin(self) -> None:
        self._advance()

    def _advance(self) -> None:
        self._digit = int(self.np_random.integers(self.num_actions))
        self._vector = self.np_random.choice([-1.0, 1.0], size=2).astype(np.float32)
        self._right = (self._digit + int(self._vector[0] < 0)) % self.num_actions
        others = [action for action in range(self.num_actions) if action != self._right]
        allowed = self.np_random.choice(others, size=self.num_actions // 2 - 1, replace=False)
        self._mask = np.zeros(self.num_actions, dtype=np.int8)
        self._mask[[self._right, *allowed]] = 1

    def _observe(self) -> dict[str, Any]:
        return {"action_mask": self._mask, "digit": self._digit, "vector": self._vector}

    def _reward(self, action: Any) -> float:
        if not self._mask[int(action)]:
            allowed = np.flatnonzero(self._mask)
            raise gymnasium.error.InvalidAction(f"action {action} is masked; allowed: {allowed}")
        return float(int(action) == self._right)


if "tests/Counting-v0" not in gymnasium.registry:
    gymnasium.register(
        id="tests/Counting-v0",
        entry_point=CountingEnvironment,
        vector_entry_point=CountingVectorEnvironment,
    )
