# SPDX-License-Identifier: Apache-2.0
"""The return of the episodes that began last, among those that have ended lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

_STATE = "newest_episodes"
_WINDOW, _KNOWN = 100, 1000


class NewestEpisodes:
    """Of the last 1,000 episodes that ended, the 100 that began with the newest weights.

    Where many environments play long episodes, the last 100 to end include some that began long
    before the others. When one began follows from its length: all of `num_envs` environments took
    about as many steps since. Without that number there is nothing to say."""

    def __init__(self, num_envs: int = 0) -> None:
        self._num_envs = num_envs
        self._known: deque[tuple[float, float]] = deque(maxlen=_KNOWN)
        """The env step at which each began, and its return."""

    def take(self, ended: Iterable[tuple[float, int]], env_steps: int) -> None:
        """Return and length of episodes that ended just now, when `env_steps` were taken."""
        for returned, length in ended:
            self._known.append((env_steps - length * self._num_envs, returned))

    def metrics(self, env_steps: int) -> dict[str, float]:
        """Their mean return, and how many env steps ago they began."""
        if not self._num_envs or not self._known:
            return {}
        newest = sorted(self._known, reverse=True)[:_WINDOW]
        began, returned = np.mean(newest, axis=0).tolist()
        return {"return/newest_100": returned, "return/newest_100_age_env_steps": env_steps - began}

    def state(self) -> dict[str, np.ndarray]:
        return {_STATE: np.array(self._known, np.float64).reshape(-1, 2)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Runs that were saved before this was kept begin with none."""
        for began, returned in state.get(_STATE, np.zeros((0, 2))).tolist():
            self._known.append((began, returned))
