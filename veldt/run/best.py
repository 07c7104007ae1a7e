# SPDX-License-Identifier: Apache-2.0
"""The best weights of a run, in a store that the rotation of checkpoints does not reach.

Best is what evaluated best; as long as nothing was evaluated, what the training episodes returned
most with. A run that ends far below its best has collapsed, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veldt.backends.checkpoint_parts import WEIGHTS
from veldt.checkpoints.store import CheckpointError, CheckpointStore
from veldt.telemetry.aggregate import RunTelemetry
from veldt.types import Parameters

BEST = "best"
_WRITE_SECONDS = 10.0  # while returns grow there is a new best all the time
_CLEARLY = 4.0  # standard errors between two means that are not the same by chance


@dataclass(frozen=True)
class Score:
    """A mean return and how well it is known."""

    mean: float
    error: float
    """Its standard error."""
    evaluated: bool

    @staticmethod
    def of(returns: np.ndarray) -> Score:
        """Of evaluation episodes."""
        return Score(float(returns.mean()), float(returns.std() / math.sqrt(returns.size)), True)

    def is_clearly_above(self, other: Score) -> bool:
        return self.mean - other.mean > _CLEARLY * math.hypot(self.error, other.error)


def training_score(run: RunTelemetry) -> Score | None:
    """Of the last 100 training episodes; None before there are as many."""
    if not run.has_100_returns:
        return None
    return Score(run.mean_return_100, run.return_error_100, False)


@dataclass(frozen=True)
class _Kept:
    score: Score
    weights: Parameters
    env_steps: int


class BestWeights:
    """Follows one run. Weights are copied whenever returns are the best so far, and written at most
    every few seconds."""

    def __init__(self, directory: Path, note: Callable[[str], None]) -> None:
        self._store, self._note = CheckpointStore(directory, keep=1), note
        self._kept: _Kept | None = None
        self._lowest: float | None = None
        self._is_written, self._next_write = True, 0.0

    def load(self) -> None:
        """Go on from what an earlier part of the run has left."""
        try:
            found = self._store.newest()
        except CheckpointError as error:
            self._note(f"the best weights so far cannot be read: {error}")
            return
        if found is not None:
            meta = found.meta
            score = Score(meta["mean"], meta["error"], meta["evaluated"])
            weights = Parameters(found.load(WEIGHTS)["vector"], meta["version"])
            self._kept = _Kept(score, weights, meta["env_steps"])
            self._lowest = meta["lowest"]

    @property
    def score(self) -> Score | None:
        return None if self._kept is None else self._kept.score

    @property
    def env_steps(self) -> int | None:
        """Age of the best weights."""
        return None if self._kept is None else self._kept.env_steps

    @property
    def weights(self) -> Parameters | None:
        return None if self._kept is None else self._kept.weights

    def watch(self, run: RunTelemetry, weights: Callable[[], Parameters]) -> None:
        """Look at the training episodes of this moment."""
        score = training_score(run)
        if score is None:
            return
        self._lowest = score.mean if self._lowest is None else min(self._lowest, score.mean)
        if self._kept is None or (
            not self._kept.score.evaluated and score.mean > self._kept.score.mean
        ):
            self.keep(score, weights(), run.env_steps)

    def evaluated(self, score: Score, weights: Parameters, env_steps: int) -> None:
        """Take in the score of fresh episodes with these weights."""
        kept = self._kept
        is_same = kept is not None and kept.weights.version == weights.version
        if kept is None or not kept.score.evaluated or is_same or score.mean > kept.score.mean:
            self.keep(score, weights, env_steps)

    def keep(self, score: Score, weights: Parameters, env_steps: int) -> None:
        """Take these for the best, unless they are broken."""
        if np.isfinite(weights.vector).all():
            own = Parameters(weights.vector.copy(), weights.version)
            self._kept, self._is_written = _Kept(score, own, env_steps), False

    def write_if_due(self, elapsed_seconds: float) -> None:
        if not self._is_written and elapsed_seconds >= self._next_write:
            self._next_write = elapsed_seconds + _WRITE_SECONDS
            self.write()

    def write(self) -> None:
        """Write what was kept since the last time."""
        kept = self._kept
        if self._is_written or kept is None:
            return
        self._is_written = True
        meta: dict[str, Any] = {
            "complete": False,
            "version": kept.weights.version,
            "env_steps": kept.env_steps,
            "lowest": self._lowest,
            "mean": kept.score.mean,
            "error": kept.score.error,
            "evaluated": kept.score.evaluated,
        }
        try:
            # Numbered, not by env steps: a resumed run may do better at an earlier point.
            newest = self._store.newest()
            number = 0 if newest is None else newest.step + 1
            self._store.save(number, {WEIGHTS: {"vector": kept.weights.vector}}, meta)
        except CheckpointError as error:
            self._note(f"the best weights were not written: {error}")

    def has_dropped(self, now: Score) -> bool:
        """Whether `now` is far below the best: clearly, and by half of what was gained."""
        best = self.score
        if best is None or not best.is_clearly_above(now):
            return False
        lowest = now.mean if self._lowest is None else min(self._lowest, now.mean)
        return best.mean - now.mean > 0.5 * (best.mean - lowest)
