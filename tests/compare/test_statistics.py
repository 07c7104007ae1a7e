# SPDX-License-Identifier: Apache-2.0
"""Interquartile means, bootstrap and joint curves against slow transcriptions."""

from __future__ import annotations

import numpy as np
import pytest

from veldt.compare.statistics import (
    CONFIDENCE,
    RESAMPLES,
    estimate,
    interquartile_mean,
    joint_curve,
)


def slow_interquartile_mean(values: list[float]) -> float:
    """The mean of the middle half of every value repeated four times: 4n values, n cut off at each
    end, which is exact for any n."""
    repeated = sorted(value for value in values for _ in range(4))
    count = len(values)
    middle = repeated[count : 3 * count]
    return sum(middle) / len(middle)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_interquartile_mean(count):
    values = np.random.default_rng(count).normal(size=count)
    assert interquartile_mean(values) == pytest.approx(slow_interquartile_mean(list(values)))


def test_interval_is_the_percentile_bootstrap():
    values = np.random.default_rng(0).normal(size=5)
    found = estimate(values, seed=3)
    drawn = np.random.default_rng(3).integers(5, size=(RESAMPLES, 5))
    means = sorted(slow_interquartile_mean([values[i] for i in row]) for row in drawn)
    tail = (1 - CONFIDENCE) / 2
    assert found.low == pytest.approx(np.quantile(means, tail))
    assert found.high == pytest.approx(np.quantile(means, 1 - tail))
    assert found.low < found.value < found.high


def test_a_curve_is_estimated_point_by_point_with_the_same_seeds():
    values = np.random.default_rng(0).normal(size=(7, 4))
    whole = estimate(values)
    for row, point in enumerate(values):
        alone = estimate(point)
        assert (whole.value[row], whole.low[row], whole.high[row]) == pytest.approx(
            (alone.value, alone.low, alone.high)
        )


def test_joint_curve_covers_what_all_seeds_know():
    long = (np.array([0.0, 1.0, 4.0]), np.array([np.nan, 2.0, 4.0]))
    short = (np.array([0.0, 2.0, 3.0]), np.array([0.0, 6.0, 6.0]))
    grid, curve = joint_curve([long, short], [False, False])
    assert (grid[0], grid[-1]) == (1.0, 3.0)
    assert (curve.value[0], curve.value[-1]) == (1.0, 4.0)


def test_a_held_curve_keeps_its_last_value():
    long = (np.array([0.0, 4.0]), np.array([1.0, 4.0]))
    done = (np.array([0.0, 2.0]), np.array([1.0, 8.0]))
    grid, curve = joint_curve([long, done], [False, True])
    assert grid[-1] == 4.0
    assert curve.value[-1] == 6.0


def test_no_common_stretch_is_no_curve():
    never = (np.array([0.0, 1.0]), np.array([np.nan, np.nan]))
    some = (np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    late = (np.array([5.0, 6.0]), np.array([1.0, 1.0]))
    assert joint_curve([never, some], [False, False]) is None
    assert joint_curve([some, late], [False, False]) is None
