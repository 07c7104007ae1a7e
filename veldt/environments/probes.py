# SPDX-License-Identifier: Apache-2.0
"""Small environments with known answers, for tests, documentation and examples.

Each says its best score and what chance gets; the ones called probes also say their value function.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from veldt.environments.counting import CountingEnvironment, CountingVectorEnvironment
from veldt.environments.probe import Probe, StepResult
from veldt.environments.small_tasks import (
    CatchEnvironment,
    DeepSeaEnvironment,
    NestedDictEnvironment,
    StairsEnvironment,
)


class MemoryEnvironment(Probe):
    """A cue of -1 or +1 is shown on the first step only; the last step asks for it. Best 1; chance,
    and so the best of any policy without memory, 0."""

    def __init__(self, delay_env_steps: int = 6) -> None:
        self.length = delay_env_steps + 1
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _begin(self) -> None:
        self._cue = int(self.np_random.integers(2))

    def _observe(self) -> np.ndarray:
        cue = 2.0 * self._cue - 1.0 if self._elapsed == 0 else 0.0
        asked = float(self._elapsed == self.length - 1)
        return np.array([cue, asked], dtype=np.float32)

    def _reward(self, action: Any) -> float:
        if self._elapsed < self.length - 1:
            return 0.0
        return 1.0 if int(action) == self._cue else -1.0


class MaskedDictEnvironment(Probe):
    """Dict observation with an action mask: half of the actions are allowed, and taking another
    raises. The right one is `digit`, or the one after it when the vector's first entry is negative.
    Best 20 (1 per step), chance among allowed actions 20/3."""

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


class MultiDiscreteEnvironment(Probe):
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


class _OneNumberProbe(Probe):
    """A probe whose observation is the number of steps so far."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.array([self._elapsed], dtype=np.float32)


class ValueProbe(_OneNumberProbe):
    """One step, reward 1. Value 1; every policy scores 1."""

    def _reward(self, action: Any) -> float:
        return 1.0


class DiscountProbe(_OneNumberProbe):
    """Two steps, reward 1 for the second. Values discount, 1; every policy scores 1."""

    length = 2

    def _reward(self, action: Any) -> float:
        return float(self._elapsed == 1)


class ActionProbe(_OneNumberProbe):
    """One step, reward +1 for action 1 and -1 for action 0. Best 1, chance 0."""

    def _reward(self, action: Any) -> float:
        return 2.0 * int(action) - 1.0


class TruncationProbe(_OneNumberProbe):
    """Always the same observation, reward 1, truncated after 4 steps. Value 1 / (1 - discount)
    where truncation bootstraps, below 4 where it is taken for an end; every policy scores 4."""

    length = 4

    def _observe(self) -> np.ndarray:
        return np.zeros(1, dtype=np.float32)

    def _reward(self, action: Any) -> float:
        return 1.0

    def step(self, action: Any) -> StepResult:
        observation, reward, over, _, info = super().step(action)
        return observation, reward, False, over, info


def register_probes() -> None:
    """Make the probes known to Gymnasium as veldt/<name>-v0."""
    probes: dict[str, type[gymnasium.Env]] = {
        "Action": ActionProbe,
        "Catch": CatchEnvironment,
        "Counting": CountingEnvironment,
        "DeepSea": DeepSeaEnvironment,
        "Discount": DiscountProbe,
        "MaskedDict": MaskedDictEnvironment,
        "Memory": MemoryEnvironment,
        "NestedDict": NestedDictEnvironment,
        "MultiDiscrete": MultiDiscreteEnvironment,
        "Stairs": StairsEnvironment,
        "Truncation": TruncationProbe,
        "Value": ValueProbe,
    }
    vectors: dict[str, type[VectorEnv]] = {"Counting": CountingVectorEnvironment}
    for name, single in probes.items():
        if f"veldt/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"veldt/{name}-v0",
                entry_point=_path_of(single),
                vector_entry_point=_path_of(vectors[name]) if name in vectors else None,
            )


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__name__}"
