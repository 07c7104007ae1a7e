# SPDX-License-Identifier: Apache-2.0
"""Tells losses that are far from the usual: one corrupted batch must not reach the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OutlierSettings:
    """When a gradient is refused because of its loss."""

    outlier_deviations: float = 6.0
    """Refuse gradients whose |loss| is this many deviations above its running mean; 0: never."""
    outlier_memory_gradients: int = 200
    """Gradients over which mean and deviation run; none is refused before so many were seen."""

    def __post_init__(self) -> None:
        if self.outlier_deviations < 0.0 or self.outlier_memory_gradients < 1:
            raise ValueError("outlier_deviations must not be negative, their memory 1 or more")


class OutlierFilter:
    """Running mean and deviation of |loss|.

    A refused loss still counts, as if it lay on the bound: a lasting change of scale is learned
    in time, a single wild one moves the bound only a little."""

    def __init__(self, settings: OutlierSettings) -> None:
        self._settings = settings
        self.mean = self.square = 0.0
        self.seen = 0

    @property
    def bound(self) -> float:
        """The largest |loss| that is accepted now."""
        settings = self._settings
        if not settings.outlier_deviations or self.seen < settings.outlier_memory_gradients:
            return math.inf
        deviation = math.sqrt(max(0.0, self.square - self.mean**2))
        return self.mean + settings.outlier_deviations * deviation

    def accepts(self, loss: float) -> bool:
        """Whether the loss is usual; it counts for the losses that follow. NaN is not."""
        size, bound = abs(loss), self.bound
        if not math.isfinite(size):
            return False
        counted = min(size, bound)
        self.seen += 1
        share = 1.0 / min(self.seen, self._settings.outlier_memory_gradients)
        self.mean += share * (counted - self.mean)
        self.square += share * (counted**2 - self.square)
        return size <= bound

    def state(self) -> np.ndarray:
        return np.array([self.mean, self.square, self.seen])

    def load_state(self, state: np.ndarray) -> None:
        self.mean, self.square, self.seen = float(state[0]), float(state[1]), int(state[2])
