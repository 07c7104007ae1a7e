# SPDX-License-Identifier: Apache-2.0
"""Small tasks with known best and chance scores, registered with Gymnasium as veldt/<name>-v0."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class Task(gymnasium.Env):
    """An episode of `length` steps; subclasses give observations and rewards."""

    length = 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._elapsed = 0
        self._begin()
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        reward = self._reward(action)
        self._elapsed += 1
        self._advance()
        return self._observe(), float(reward), self._elapsed >= self.length, False, {}

    def _begin(self) -> None:
        """Draw what is constant within an episode."""

    def _advance(self) -> None:
        """Draw what changes from step to step."""

    def _observe(self) -> Any:
        raise NotImplementedError

    def _reward(self, action: Any) -> float:
        raise NotImplementedError


class CatchEnvironment(Task):
    """bsuite's Catch: a ball falls down a board of 10 x 5; the paddle in the last row moves.

    Best 1 (caught), missed -1; chance about -0.6."""

    rows, columns = 10, 5
    length = rows - 1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (self.rows, self.columns, 1), bool)
        self.action_space = spaces.Discrete(3)

    def _begin(self) -> None:
        self._ball = int(self.np_random.integers(self.columns))
        self._paddle = self.columns // 2

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.rows, self.columns, 1), bool)
        board[self._elapsed, self._ball] = board[-1, self._paddle] = True
        return board

    def _reward(self, action: Any) -> float:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.columns - 1)
        if self._elapsed < self.length - 1:
            return 0.0
        return 1.0 if self._ball == self._paddle else -1.0


class MemoryEnvironment(Task):
    """A cue of -1 or +1 is visible in the first step only; the last action must repeat it.

    Best 1; chance, and the best of any policy without memory, 0."""

    def __init__(self, delay_env_steps: int = 6) -> None:
        self.length = delay_env_steps + 1
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _begin(self) -> None:
        self._cue = int(self.np_random.integers(2))

    def _observe(self) -> np.ndarray:
        cue = 2.0 * self._cue - 1.0 if self._elapsed == 0 else 0.0
        is_last = float(self._elapsed == self.length - 1)
        return np.array([cue, is_last], dtype=np.float32)

    def _reward(self, action: Any) -> float:
        if self._elapsed < self.length - 1:
            return 0.0
        return 1.0 if int(action) == self._cue else -1.0


class NestedDictEnvironment(Task):
    """A nested Dict observation: an image, a digit and an uninformative vector.

    The right action is the quarter of the image that has a dot, or the next one if the digit is 1.
    Best 20 (1 per step), chance 5."""

    length = 20

    def __init__(self) -> None:
        image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "seen": spaces.Dict({"image": image}),
                "digit": spaces.Discrete(2),
                "vector": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(4)

    def _begin(self) -> None:
        self._advance()

    def _advance(self) -> None:
        random = self.np_random
        self._quarter, self._digit = int(random.integers(4)), int(random.integers(2))
        self._image = np.zeros((8, 8, 3), np.uint8)
        row, column = random.integers(0, 4, 2) + np.multiply(divmod(self._quarter, 2), 4)
        self._image[row, column, random.integers(3)] = 255
        self._vector = random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _observe(self) -> dict[str, Any]:
        return {"seen": {"image": self._image}, "digit": self._digit, "vector": self._vector}

    def _reward(self, action: Any) -> float:
        return float(int(action) == (self._quarter + self._digit) % 4)


class StairsEnvironment(gymnasium.Env):
    """Repeating the observed 0 or 1 climbs one stair; the other action ends the episode.

    Each stair gives 1 / height. Best 1, chance about 1 / height. The last info has `is_success`."""

    def __init__(self, height: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._height = height

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._stair = 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        is_right = int(action) == self._shown
        self._stair += is_right
        at_top = self._stair == self._height
        info = {"is_success": at_top, "height": self._height, "episode": {"stairs": self._stair}}
        return self._observe(), is_right / self._height, at_top or not is_right, False, info

    def _observe(self) -> np.ndarray:
        self._shown = int(self.np_random.integers(2))
        return np.array([self._shown], np.float32)


def register_small_tasks() -> None:
    """Make the tasks known to Gymnasium; safe to call again."""
    for task in (
        CatchEnvironment,
        MemoryEnvironment,
        NestedDictEnvironment,
        StairsEnvironment,
    ):
        name = f"veldt/{task.__name__.removesuffix('Environment')}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=f"{task.__module__}:{task.__name__}")
