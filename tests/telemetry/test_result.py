# SPDX-License-Identifier: Apache-2.0
"""result.json is read as it was written, also by an older version."""

import json
from pathlib import Path

import numpy as np

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
