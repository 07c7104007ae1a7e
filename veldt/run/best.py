# SPDX-License-Identifier: Apache-2.0
"""The best weights of a run, in a store of their own that no rotation of checkpoints deletes.

The best weights are those with the highest evaluation; before any evaluation, those with the
highest mean return of training episodes, which an evaluation far below does not replace. A run that
ends far below its best has collapsed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veldt.backends.checkpoint_parts import WEIGHTS
from veldt.checkpoints.store import CheckpointError, CheckpointStore
from veldt.telemetry.aggregate import RunTelemetry
from veldt.types import Parameters

BEST = "best"
_WRITE_SECONDS = 10.0  # while returns grow, the best changes all the time
_CLEARLY = 4.0  # standard errors between two means that do not differ by chance


@dataclass(frozen=True)
class Score:
    """A mean return and how well it is known."""

    mean: float
    error: float
    """Standard error of the mean."""
    evaluated: bool

    @staticmethod
    def of(returns: np.ndarray) -> Score:
        """The score of evaluation episodes."""
        return Score(float(returns.mean()), float(returns.std() / math.sqrt(returns.size)), True)


def training_score(run: RunTelemetry) -> Score | None:
    """The score of the last 100 training episodes; None before there are as many."""
    if not run.has_100_returns:
        return None
    return Score(run.mean_return_100, run.return_error_100, False)


@dataclass(frozen=True)
class Best:
    """Weights, how they scored, and their age."""

    score: Score
    weights: Parameters
    env_steps: int


class BestWeights:
    """Keeps the best weights of one run in memory, and writes them every few seconds."""

    def __init__(
        self, directory: Path, note: Callable[[str], None], returns_show_progress: bool = True
    ) -> None:
        """In a league returns show none, and only `keep` replaces the best weights."""
        self._store, self._note = CheckpointStore(directory, keep=1), note
        self._returns_show_progress = returns_show_progress
        self.best: Best | None = None
        self._lowest: float | None = None
        self._is_written, self._next_write = True, 0.0

    def load(self) -> None:
        """Continue from the best weights of an earlier part of the run."""
        try:
            found = self._store.newest()
        except CheckpointError as error:
            self._note(f"the best weights so far cannot be read: {error}")
            return
        if found is not None:
            meta = found.meta
            weights = Parameters(found.load(WEIGHTS)["vector"], meta["version"])
            score = Score(meta["mean"], meta["error"], meta["evaluated"])
            self.best, self._lowest = Best(score, weights, meta["env_steps"]), meta["lowest"]

    def watch(self, run: RunTelemetry, weights: Callable[[], Parameters]) -> None:
        """Keep the newest weights if recent training episodes returned more than before."""
        now = training_score(run)
        if now is None or not self._returns_show_progress:
            return
        self._lowest = now.mean if self._lowest is None else min(self._lowest, now.mean)
        best = self.best
        if best is None or (not best.score.evaluated and now.mean > best.score.mean):
            self.keep(now, weights(), run.env_steps)

    def evaluated(self, score: Score, weights: Parameters, env_steps: int) -> None:
        """Keep weights that evaluated better than all before, or their newer score."""
        if not self._returns_show_progress:
            return
        best = self.best
        is_same = best is not None and best.weights.version == weights.version
        is_known = best is not None and (best.score.evaluated or self.has_dropped(score))
        if is_same or not is_known or best is None or score.mean > best.score.mean:
            self.keep(score, weights, env_steps)

    def keep(self, score: Score, weights: Parameters, env_steps: int) -> None:
        """Replace the best weights, unless these are not finite."""
        if np.isfinite(weights.vector).all():
            copied = Parameters(weights.vector.copy(), weights.version)
            self.best, self._is_written = Best(score, copied, env_steps), False

    def write(self, elapsed_seconds: float = math.inf) -> None:
        """Write the best weights if they have changed, at most every few seconds."""
        best = self.best
        if self._is_written or elapsed_seconds < self._next_write or best is None:
            return
        self._is_written, self._next_write = True, elapsed_seconds + _WRITE_SECONDS
        meta = {
            "complete": False,
            "version": best.weights.version,
            "env_steps": best.env_steps,
            "lowest": self._lowest,
            **vars(best.score),
        }
        try:
            # Not numbered by env steps: a resumed run may do better at an earlier point.
            newest = self._store.newest()
            number = 0 if newest is None else newest.step + 1
            self._store.save(number, {WEIGHTS: {"vector": best.weights.vector}}, meta)
        except CheckpointError as error:
            self._note(f"the best weights were not written: {error}")

    def has_dropped(self, now: Score) -> bool:
        """Whether `now` is significantly below the best, by more than half of what was gained."""
        if self.best is None:
            return False
        best, noise = self.best.score, math.hypot(self.best.score.error, now.error)
        lowest = now.mean if self._lowest is None else min(self._lowest, now.mean)
        return best.mean - now.mean > max(_CLEARLY * noise, 0.5 * (best.mean - lowest))
