# SPDX-License-Identifier: Apache-2.0
"""Interquartile means and percentile bootstrap intervals over seeds (Agarwal et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
GRID_POINTS = 100
FEWEST_FOR_AN_INTERVAL = 3
"""Resampling two seeds gives their range, which is not a confidence interval."""


@dataclass(frozen=True)
class Estimate:
    """Interquartile mean over seeds and its bootstrap interval; arrays for curves."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_weights(count: int) -> np.ndarray:
    """Weight of each of `count` sorted values in the interquartile mean.

    w_i = |[i, i+1] cut with [n/4, 3n/4]| / (n/2) is exact for any n; cutting whole values would
    keep all of three seeds."""
    ranks = np.arange(count)
    low, high = count / 4, 3 * count / 4
    return np.clip(np.minimum(ranks + 1, high) - np.maximum(ranks, low), 0.0, None) / (count / 2)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    values = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    return values @ interquartile_weights(values.shape[-1])


def estimate(values: np.ndarray, seed: int = 0) -> Estimate:
    """Interquartile mean of [..., seeds] and the interval from resampling seeds.

    All points of a curve use the same resamples, because a seed is drawn as a whole. The interval
    of one seed has no width."""
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1]
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    means = interquartile_mean(values[..., drawn])
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail), axis=-1)
    return Estimate(interquartile_mean(values), low, high)


def step_values(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The last known y at or before each grid point; NaN before the first."""
    position = np.searchsorted(x, grid, side="right") - 1
    padded = np.concatenate((np.asarray(y, dtype=np.float64), [np.nan]))
    return padded[position]


def joint_curve(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], held: Sequence[bool]
) -> tuple[np.ndarray, Estimate] | None:
    """Grid and estimate over the range that all curves cover; None where there is no such range.

    A curve that is `held` keeps its last value; the shortest of the others ends the grid."""
    curves = [(x[known], y[known]) for x, y in curves for known in [np.isfinite(y)]]
    if not curves or any(x.size == 0 for x, _ in curves):
        return None
    ends = [x[-1] for x, _ in curves]
    full = [end for end, hold in zip(ends, held, strict=True) if not hold]
    start, end = max(x[0] for x, _ in curves), min(full) if full else max(ends)
    if end < start:
        return None
    grid = np.linspace(start, end, GRID_POINTS)
    return grid, estimate(np.stack([step_values(x, y, grid) for x, y in curves], axis=-1))
