# SPDX-License-Identifier: Apache-2.0
"""The one definition of a steady rate, for a run's own numbers and for those read from its file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from veldt.telemetry.rates import steady_rate, steady_start


@pytest.mark.parametrize(
    ("updates", "start"),
    [
        ([0, 0, 0, 0], 0),  # nothing was learned
        ([0, 0, 0, 1], 0),  # learned at the very end
        ([7, 7, 8, 9], 2),  # resumed
        ([0, 1, 2, 3], 2),  # a tenth of the time has passed
    ],
)
def test_steady_state_begins_after_the_first_update(updates: list[float], start: int) -> None:
    assert steady_start([0.0, 1.0, 2.0, 3.0], updates) == start


def test_a_long_run_leaves_out_five_seconds() -> None:
    seconds = [float(second) for second in range(101)]
    assert steady_start(seconds, [float(second > 9) for second in range(101)]) == 15


def test_a_single_moment_has_no_rate() -> None:
    assert math.isnan(steady_rate([], "x"))
    assert math.isnan(steady_rate([{"time": 1.0, "updates": 1.0, "x": 1.0}], "x"))


def test_the_file_of_metrics_gives_the_same_rate_as_the_run(fake_run: Callable[..., Any]) -> None:
    fake, rows = fake_run("actor-0", "learner-0"), []
    for second in range(30):
        fake.nodes["learner-0"].counter("trained_env_steps").add(second * second)
        fake.nodes["learner-0"].counter("updates").add(second > 8)
        fake.update(1.0)
        rows.append({"time": 1000.0 + second, **fake.run.metrics()})
    expected = fake.run.steady_rate("trained_env_steps")
    assert expected > 0
    assert steady_rate(rows, "counter/trained_env_steps") == pytest.approx(expected)
    assert steady_rate(rows, "updates") == pytest.approx(fake.run.steady_rate("updates"))
