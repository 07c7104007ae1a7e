# SPDX-License-Identifier: Apache-2.0
"""Tells losses that are far from the usual: one corrupted batch must not reach the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from veldt.options.checked import Count, NotNegative, Options


@dataclass(frozen=True)
class OutlierOptions(Options):
    """When a gradient is refused because of its loss."""

    outlier_deviations: NotNegative = 6.0
    """Refuse gradients whose |loss| is this many deviations above its running mean; 0: never."""
    outlier_memory_gradients: Count = 200
    """Gradients over which mean and deviation run; none is refused before so many were seen."""


class OutlierFilter:
    """Running mean and deviation of |loss|.

    A refused loss still counts, as if it lay on the bound: a lasting change of scale is learned
    in time, a single wild one moves the bound only a little."""

    def __init__(self, options: OutlierOptions) -> None:
        self._options = options
        self.mean = self.square = 0.0
        self.seen = 0

    @property
    def bound(self) -> float:
        """The largest |loss| that is accepted now."""
        options = self._options
        if not options.outlier_deviations or self.seen < options.outlier_memory_gradients:
            return math.inf
        deviation = math.sqrt(max(0.0, self.square - self.mean**2))
        return self.mean + options.outlier_deviations * deviation

    def accepts(self, loss: float) -> bool:
        """Whether the loss is usual; it counts for the losses that follow. NaN is not."""
        size, bound = abs(loss), self.bound
        if not math.isfinite(size):
            return False
        counted = min(size, bound)
        self.seen += 1
        share = 1.0 / min(self.seen, self._options.outlier_memory_gradients)
        self.mean += share * (counted - self.mean)
        self.square += share * (counted**2 - self.square)
        return size <= bound

    def state(self) -> np.ndarray:
        return np.array([self.mean, self.square, self.seen])

    def load_state(self, state: np.ndarray) -> None:
        self.mean, self.square, self.seen = float(state[0]), float(state[1]), int(state[2])
