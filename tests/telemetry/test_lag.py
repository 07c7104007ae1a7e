# SPDX-License-Identifier: Apache-2.0
"""Policy lag of rows against a plain recount."""

from __future__ import annotations

import numpy as np
import pytest

from veldt.telemetry.counters import LAG_BINS, LagSummary, NodeTelemetry


def recount(lags: np.ndarray) -> LagSummary:
    """The summary by a plain loop."""
    histogram = np.zeros(LAG_BINS, np.int64)
    for lag in lags.tolist():
        histogram[min(max(lag, 0), LAG_BINS - 1)] += 1
    return LagSummary(
        len(lags), int(min(lags)), sum(lags.tolist()) / len(lags), max(lags), histogram
    )


def same(found: LagSummary, expected: LagSummary) -> None:
    np.testing.assert_array_equal(found.histogram, expected.histogram)
    assert (found.count, found.min, found.max) == (expected.count, expected.min, expected.max)
    assert found.mean == pytest.approx(expected.mean, rel=1e-12)


def test_lag_equals_a_recount() -> None:
    random = np.random.default_rng(0)
    node, seen = NodeTelemetry(), []
    for highest in (1, 5, 130, 1000):
        for shape in ((21, 64), (0,), (3,)):
            lags = random.integers(0, highest, shape)
            node.lag(lags)
            seen.append(lags.ravel())
    same(node.snapshot().lag, recount(np.concatenate(seen)))


def test_lag_of_rows_that_are_all_old_has_its_own_minimum() -> None:
    node = NodeTelemetry()
    node.lag(np.array([5, 9]))
    assert (node.snapshot().lag.min, node.snapshot().lag.max) == (5, 9)


def test_merged_lag_equals_a_recount_of_all_rows() -> None:
    random = np.random.default_rng(1)
    parts = [random.integers(low, 200, size) for low, size in ((3, 10), (0, 1000), (50, 1))]
    nodes = [NodeTelemetry() for _ in range(4)]  # the last one stays empty
    for node, lags in zip(nodes, parts, strict=False):
        node.lag(lags)
    merged = LagSummary.merge([node.snapshot().lag for node in nodes])
    same(merged, recount(np.concatenate(parts)))
    assert LagSummary.merge([]).count == LagSummary.merge([LagSummary()]).count == 0
