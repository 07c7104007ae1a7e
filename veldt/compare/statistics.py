# SPDX-License-Identifier: Apache-2.0
"""Averages over seeds that one odd seed does not rule, and how sure one can be of them.

Interquartile mean and percentile bootstrap over seeds (Agarwal et al., 2021). Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
GRID_POINTS = 100
FEWEST_FOR_AN_INTERVAL = 3
"""Resampling two seeds gives their range, which is no interval of confidence."""


@dataclass(frozen=True)
class Estimate:
    """Interquartile mean over seeds and its bootstrap interval; arrays for curves."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_weights(count: int) -> np.ndarray:
    """Weight of each of `count` sorted values: how much of its share lies in the middle half.

    With w_i = |[i, i+1] cut with [n/4, 3n/4]| / (n/2) the mean is exact for any n, where cutting
    whole values would keep all of three seeds."""
    ranks = np.arange(count)
    low, high = count / 4, 3 * count / 4
    return np.clip(np.minimum(ranks + 1, high) - np.maximum(ranks, low), 0.0, None) / (count / 2)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    values = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    return values @ interquartile_weights(values.shape[-1])


def estimate(values: np.ndarray, seed: int = 0) -> Estimate:
    """Interquartile mean of [..., seeds] and the interval from resampling seeds.

    The same resamples serve all points of a curve: a seed is drawn as a whole. One seed gives an
    interval of no width, which says nothing."""
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
    """Grid and estimate over seeds where all of them are known.

    A curve that is `held` keeps its last value; the shortest of the others is the end. None when
    the seeds have no stretch in common."""
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
