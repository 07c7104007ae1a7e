# SPDX-License-Identifier: Apache-2.0
"""Tasks with known best scores: a small image, alone or deep in a dictionary, and stairs whose
height can be set while a run goes on."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from veldt.environments.probe import Probe, StepResult


class CatchEnvironment(gymnasium.Env):
    """bsuite's Catch: a ball falls straight down a board of 10 x 5, the paddle in the last row
    moves left, stays or moves right. Best 1 (caught), missed -1; chance about -0.6."""

    rows, columns = 10, 5

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (self.rows, self.columns, 1), bool)
        self.action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball = [0, int(self.np_random.integers(self.columns))]
        self._paddle = self.columns // 2
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.columns - 1)
        self._ball[0] += 1
        over = self._ball[0] == self.rows - 1
        reward = (1.0 if self._ball[1] == self._paddle else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.rows, self.columns, 1), bool)
        board[self._ball[0], self._ball[1]] = board[-1, self._paddle] = True
        return board


class DeepSeaEnvironment(gymnasium.Env):
    """bsuite's Deep Sea: one sinks by a row per step, to the left or, for a small price, to the
    right; a treasure lies in the last corner, which only going right every time reaches. Which
    action leads right is another in each cell. Best 0.99; chance finds the treasure in one of
    2^size episodes."""

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

    def step(self, action: Any) -> StepResult:
        is_right = int(action) == self._right[self._row, self._column]
        found = bool(is_right) and self._row == self._column == self._size - 1
        reward = float(found) - self.price / self._size * float(is_right)
        self._column = max(self._column + (1 if is_right else -1), 0)
        self._row += 1
        over = self._row == self._size
        return self._observe(), reward, over, False, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros((self._size, self._size), np.float32)
        if self._row < self._size:
            seen[self._row, self._column] = 1.0
        return seen.ravel()


class NestedDictEnvironment(Probe):
    """A dictionary in a dictionary: a dot in one of the four quarters of an image of 8 x 8, a digit
    that says whether to name the next quarter instead, and a vector that says nothing. Best 20 (1
    per step), chance 5."""

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
    """Every step shows 0 or 1; doing the same leads up a stair, anything else ends the
    episode. Best 1 (the top, a share of it for each stair), chance about 1 / height. Its height is
    a parameter, and its info says at the end whether the top was reached."""

    def __init__(self, height: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._height = height

    def set_parameters(self, height: int) -> None:
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
