# SPDX-License-Identifier: Apache-2.0
"""One environment that raises is rebuilt alone; the others of its vector never notice.

Its episode ends there, truncated, and is counted as aborted instead of as a result. One that does
nothing but raise stops the run with its name.
"""

from __future__ import annotations

import contextlib
import logging
import math
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from veldt.environments.finite import cleared, is_finite
from veldt.types import ACTION_MASK

_MOST_FAILURES = 10
_MISUSE = (gymnasium.error.InvalidAction, gymnasium.error.ResetNeeded)  # our fault, not to survive
_HEALTHY_STEPS = 20  # so many between two failures, and the count starts again
_SEED_STRIDE, _SEEDS = 1_000_003, 2**31 - 1

_log = logging.getLogger(__name__)
_reported: set[str] = set()  # the first failure in a process is told; a counter has the rest


class EnvironmentFailure(RuntimeError):  # noqa: N818 - it reads as what it is in a trace
    """An environment fails whatever is done about it; names it."""


class AbortedEpisodes:
    """Which copies of a vector gave up their episode in the step under way."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def take(self, num_envs: int) -> np.ndarray:
        """bool [E]; the next step begins with none."""
        aborted = np.zeros(num_envs, dtype=bool)
        aborted[self.rows] = True
        self.rows.clear()
        return aborted


class ResilientEnvironment(gymnasium.Wrapper):
    """Copy `number` of what `make` makes. An exception, or a reward or observation that is not
    finite, ends the episode where it was last seen well, and a new environment takes over."""

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        name: str,
        number: int = 0,
        aborted: AbortedEpisodes | None = None,
    ) -> None:
        super().__init__(make())
        self._make, self._name, self._number, self._aborted = make, name, number, aborted
        self._step = self.env.step
        self._last: tuple[Any, ...] = ()
        self._failures = self._healthy_steps = 0
        self._seed: int | None = None
        self._times_rebuilt = 0
        self._is_new = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            answer = self._step(action)
            if not (math.isfinite(answer[1]) and is_finite(answer[0])):
                raise FloatingPointError("its reward or observation is not finite")
        except _MISUSE:
            raise
        except Exception as error:
            return self._abort(error)
        self._last = answer
        self._healthy_steps += 1
        return answer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._is_new = seed, False
        while True:
            try:
                given = self._seed_of_a_new_one() if self._is_new else seed
                observation, info = self.env.reset(seed=given, options=options)
                if not is_finite(observation):
                    raise FloatingPointError("its first observation is not finite")
                break
            except Exception as error:
                self._rebuild(error)
        self._is_new = False
        self._last = (observation, 0.0, False, False, info)
        return observation, info

    def _abort(self, error: Exception) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._rebuild(error)
        if self._aborted is not None:
            self._aborted.rows.append(self._number)
        observation, info = self._last[0], self._last[-1]
        if not is_finite(observation):  # an environment may write all its answers to one place
            observation = cleared(observation)
        kept = {ACTION_MASK: info[ACTION_MASK]} if ACTION_MASK in info else {}
        return observation, 0.0, False, True, kept

    def _rebuild(self, error: Exception) -> None:
        """Put a new environment in the place of the one that raised `error`."""
        while True:
            self._count(error)
            with contextlib.suppress(Exception):
                self.env.close()
            try:
                self.env = self._make()
            except Exception as another:
                error = another
                continue
            self._step = self.env.step
            self._times_rebuilt += 1
            self._is_new = True
            return

    def _count(self, error: Exception) -> None:
        if self._healthy_steps >= _HEALTHY_STEPS:
            self._failures = 0
        self._failures += 1
        self._healthy_steps = 0
        if self._failures >= _MOST_FAILURES:
            raise EnvironmentFailure(
                f"the environment '{self._name}' (copy {self._number}) failed"
                f" {self._failures} times in a row, last with {_described(error)}"
            ) from error
        if self._name not in _reported:
            _reported.add(self._name)
            _log.warning(
                "the environment '%s' (copy %d) is rebuilt and its episode aborted: %s",
                self._name,
                self._number,
                _described(error),
            )

    def _seed_of_a_new_one(self) -> int | None:
        """Another one than before, which may be what it failed on, but the same in every run."""
        if self._seed is None:
            return None
        return (self._seed + _SEED_STRIDE * self._times_rebuilt) % _SEEDS


def _described(error: Exception) -> str:
    """What was raised and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
