# SPDX-License-Identifier: Apache-2.0
"""What small environments with known answers have in common."""

from __future__ import annotations

from typing import Any

import gymnasium

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class Probe(gymnasium.Env):
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
        """Draw what stays the same for the episode."""

    def _advance(self) -> None:
        """Draw what changes from step to step."""

    def _observe(self) -> Any:
        raise NotImplementedError

    def _reward(self, action: Any) -> float:
        raise NotImplementedError
