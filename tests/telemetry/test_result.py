# SPDX-License-Identifier: Apache-2.0
"""result.json: the design's fields, valid JSON, whole or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from veldt.telemetry.counters import NodeTelemetry
from veldt.telemetry.result import RunResult, lag_entry


def a_result() -> RunResult:
    node = NodeTelemetry()
    node.lag(np.array([0, 2, 2, 4]))
    return RunResult(
        architecture="impala",
        env="CartPole-v1",
        backend="process",
        seed=3,
        env_steps=1000,
        mean_return_100=476.25,
        policy_lag=lag_entry(node.snapshot().lag),
        dropped={"stale": 2},
        stopped_by="target",
        stage_shares={"actor": {"step": 0.5, "wait": 0.25}},
    )


def test_a_result_survives_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    a_result().save(path)
    assert RunResult.load(path) == a_result()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"from_the_future": 1}))
    assert RunResult.load(path) == a_result()


def test_numbers_that_json_cannot_write_become_null() -> None:
    result = a_result()
    result.mean_return_100 = math.nan
    result.env_steps_per_second = np.float32("inf")  # type: ignore[assignment]
    result.stage_shares = {"actor": {"step": -math.inf}}
    result.env_steps = np.int64(5)  # type: ignore[assignment]
    stored = json.loads(result.to_json(), parse_constant=pytest.fail)
    lag = {"mean": 2.0, "max": 4, "min": 0, "histogram": [1, 0, 2, 0, 1]}
    assert stored["policy_lag"] == lag
    assert stored["mean_return_100"] is None
    assert stored["env_steps_per_second"] is None
    assert stored["stage_shares"] == {"actor": {"step": None}}
    assert stored["env_steps"] == 5
