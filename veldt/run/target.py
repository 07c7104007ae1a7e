# SPDX-License-Identifier: Apache-2.0
"""Whether a run has reached its target return: fresh episodes without exploration decide.

They are played when the last 100 training episodes reach the target. Those lag behind the policy
and carry its exploration, so there are looks in between, too: they take a fifth of one core's time,
and one that reaches the target is repeated with other episodes, since it may have been luck. A look
follows the clock, so there are none on the serial backend, where a seed fixes every bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veldt.telemetry.aggregate import RunTelemetry

_EPISODES_BETWEEN_EVALUATIONS = 100
_LOOKS_SHARE = 0.2  # of the time
_FIRST_LOOK_SECONDS = 0.5  # after the first update: small tasks are solved within a second
_LEAST_BETWEEN_LOOKS_SECONDS = 0.5
_LOOK_SECONDS = 4.0  # or a twentieth of the run so far: a poor policy may never end
_LONGEST_LOOK_SECONDS = 32.0
_LONGEST_LOOK_SHARE = 0.05

Play = Callable[[int, float | None], np.ndarray]
"""Returns of fresh episodes of attempt N with the newest weights, within so many seconds."""


@dataclass
class Target:
    """The target of one run, and when fresh episodes were last played for it."""

    target_return: float
    num_episodes: int
    has_looks: bool
    play: Play | None
    """None: nobody can play here, and training episodes decide alone."""
    evaluation_return: float | None = None
    """Mean return of the last evaluation that ended."""
    _next_episode: int = 0
    _next_look: float | None = None
    """None before the first update."""
    _look_seconds: float = _LOOK_SECONDS
    """Twice as long after each look whose episodes did not end, as those of Pong do not."""

    def is_reached(
        self, telemetry: RunTelemetry, elapsed_seconds: float, seconds_left: float | None
    ) -> bool:
        if self._training_reaches_it(telemetry):
            self._next_episode = telemetry.episodes + _EPISODES_BETWEEN_EVALUATIONS
            return self._holds(0, seconds_left)
        if not self.has_looks or self.play is None or telemetry.updates == 0:
            return False
        if self._next_look is None:
            self._next_look = elapsed_seconds + _FIRST_LOOK_SECONDS
        if elapsed_seconds < self._next_look:
            return False
        began = time.monotonic()
        limit = max(self._look_seconds, _LONGEST_LOOK_SHARE * elapsed_seconds)
        limit = limit if seconds_left is None else min(limit, seconds_left)
        found = self._holds(0, limit) and self._holds(1, seconds_left)
        spent = time.monotonic() - began
        self._next_look = elapsed_seconds + max(_LEAST_BETWEEN_LOOKS_SECONDS, spent / _LOOKS_SHARE)
        return found

    def _training_reaches_it(self, telemetry: RunTelemetry) -> bool:
        return (
            telemetry.has_100_returns
            and telemetry.mean_return_100 >= self.target_return
            and telemetry.episodes >= self._next_episode
        )

    def _holds(self, attempt: int, seconds: float | None) -> bool:
        """Whether fresh episodes reach it; those that did not end in time are no episodes, and a
        mean without the longest of them says nothing."""
        if self.play is None:
            return True
        returns = self.play(attempt, seconds)
        if returns.size < self.num_episodes:
            self._look_seconds = min(2.0 * self._look_seconds, _LONGEST_LOOK_SECONDS)
            return False
        self.evaluation_return = float(returns.mean())
        return self.evaluation_return >= self.target_return
