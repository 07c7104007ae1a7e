# SPDX-License-Identifier: Apache-2.0
"""Interquartile means, bootstrap and joint curves against slow transcriptions."""

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


UNKNOWN_FIRST = ([0.0, 1.0, 4.0], [np.nan, 2.0, 4.0])


@pytest.mark.parametrize(
    ("curves", "held", "grid", "values"),
    [
        ([UNKNOWN_FIRST, ([0, 2, 3], [0, 6, 6])], [False, False], (1, 3), (1, 4)),
        ([([0, 4], [1, 4]), ([0, 2], [1, 8])], [False, True], (0, 4), (1, 6)),
        ([([0, 1], [np.nan, np.nan]), ([0, 1], [1, 1])], [False, False], None, None),
        ([([0, 1], [1, 1]), ([5, 6], [1, 1])], [False, False], None, None),
    ],
    ids=["what all seeds know", "a held one keeps its last value", "nothing known", "no overlap"],
)
def test_joint_curve(curves, held, grid, values):
    found = joint_curve([(np.array(x, float), np.array(y, float)) for x, y in curves], held)
    if grid is None:
        assert found is None
        return
    points, curve = found
    assert (points[0], points[-1]) == grid
    assert (curve.value[0], curve.value[-1]) == values
