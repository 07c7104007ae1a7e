# SPDX-License-Identifier: Apache-2.0
"""Totals, rates, returns and busy shares of a run on a fake clock."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from veldt.telemetry.aggregate import RunTelemetry, steady_rate, steady_start

MakeRun = Callable[..., Any]


def test_totals_add_counters_average_gauges_and_leave_evaluators_out(fake_run):
    fake = fake_run("actor-0", "actor-1", "learner-0", "evaluator-0")
    for index, name in enumerate(("actor-0", "actor-1", "evaluator-0")):
        fake.nodes[name].counter("env_steps").add(100 * (index + 1))
        fake.nodes[name].gauge("epsilon").set(0.1 * (index + 1))
        fake.finish_episodes(name, 10.0 * (index + 1))
    fake.nodes["actor-1"].counter("dropped.stale").add(3)
    fake.nodes["learner-0"].counter("updates").add(7)
    fake.nodes["learner-0"].counter("dropped.stale").add(1)
    fake.nodes["learner-0"].counter("dropped.not_finite").add(2)
    fake.update()
    run = fake.run
    assert (run.env_steps, run.updates, run.episodes) == (300, 7, 2)
    assert run.dropped == {"stale": 4, "not_finite": 2}
    assert run.totals["epsilon"] == pytest.approx(0.15)
    assert run.mean_return_100 == 15.0


def test_an_empty_run_has_no_numbers_and_does_not_fail():
    run = RunTelemetry([("actor-0", "actor")])
    run.update({}, 0.0)
    assert math.isnan(run.mean_return_100)
    assert math.isnan(run.steady_rate())
    assert run.rate("env_steps") == 0.0
    assert run.busy_shares() == run.stage_shares() == {}
    assert run.kind_rates() == run.kind_rates(steady=True) == {}
    assert run.metrics()["updates"] == 0


def test_rates_are_over_the_last_two_seconds(fake_run):
    fake = fake_run("actor-0")
    steps = fake.nodes["actor-0"].counter("env_steps")
    for per_second in (100, 100, 100, 400, 400):
        steps.add(per_second // 2)
        fake.update(0.5)
    # The last two seconds hold increases of 50, 50, 200, 200.
    assert fake.run.rate("env_steps") == pytest.approx(500 / 2.0)
    steps.add(900)
    fake.update(3.0)
    assert fake.run.rate("env_steps") == pytest.approx(300.0)


def test_the_window_holds_the_last_hundred_returns(fake_run):
    fake = fake_run("actor-0")
    arrived: list[float] = []
    for chunk in (3, 60, 0, 60, 250, 1):
        fresh = [float(len(arrived) + index) for index in range(chunk)]
        arrived += fresh
        fake.finish_episodes("actor-0", *fresh)
        fake.update(1.0)
        assert fake.run.mean_return_100 == pytest.approx(np.mean(arrived[-100:]))
        assert fake.run.has_100_returns == (len(arrived) >= 100)


def test_many_returns_at_once_are_spread_over_the_actors(fake_run):
    fake = fake_run("actor-0", "actor-1", "actor-2")
    fake.finish_episodes("actor-0", *[0.0] * 600)
    fake.finish_episodes("actor-1", *[1.0] * 600)
    fake.update()
    assert fake.run.mean_return_100 == pytest.approx(0.5)


def test_busy_share_is_wall_time_without_waiting(fake_run):
    fake = fake_run("actor-0", "actor-1", "learner-0", "replay-0")
    for node in ("actor-0", "actor-1", "learner-0"):
        fake.spend(node, "wait", 50.0)  # before the first sample: part of no share
    fake.update()
    fake.spend("actor-0", "wait", 1.0)
    fake.spend("actor-0", "step", 2.0)
    fake.spend("actor-1", "wait", 3.0)
    fake.spend("learner-0", "learn", 1.0)  # the rest of its ten seconds is untimed work
    fake.update(10.0)
    assert fake.run.busy_shares() == pytest.approx(
        {"actor-0": 0.9, "actor-1": 0.7, "learner-0": 1.0}
    )
    assert fake.run.kind_busy_shares() == pytest.approx({"actor": 0.8, "learner": 1.0})
    shares = fake.run.stage_shares()
    assert shares["actor"] == pytest.approx({"wait": 0.2, "step": 0.1})
    assert shares["learner"] == pytest.approx({"wait": 0.0, "learn": 0.1})


def test_nodes_that_share_a_thread_are_busy_for_their_own_stages(fake_run):
    fake = fake_run("actor-0", "learner-0", turns=True)
    fake.update()
    fake.spend("actor-0", "step", 3.0)
    fake.spend("learner-0", "learn", 6.0)
    fake.spend("learner-0", "wait", 1.0)
    fake.update(10.0)
    assert fake.run.busy_shares() == pytest.approx({"actor-0": 0.3, "learner-0": 0.6})


def test_metrics_have_their_documented_names(fake_run):
    fake = fake_run("actor-0", "learner-0")
    fake.nodes["learner-0"].lag(np.array([1, 3]))
    fake.nodes["learner-0"].gauge("loss").set(0.5)
    for fill in (0.25, 0.75):
        fake.spend("learner-0", "wait", 1.0)
        fake.update(2.0, trajectories=fill)
    expected = {"lag/mean": 2.0, "lag/max": 3, "queue/trajectories": 0.75, "busy/learner": 0.5}
    assert (expected | {"counter/loss": 0.5}).items() <= fake.run.metrics().items()


@pytest.mark.parametrize(
    ("updates", "start"),
    [
        ([0, 0, 0, 0], 0),  # nothing was learned
        ([0, 0, 0, 1], 0),  # learned at the very end
        ([7, 7, 8, 9], 2),  # resumed
        ([0, 1, 2, 3], 2),  # a tenth of the time has passed
        ([float(second > 9) for second in range(101)], 15),  # five seconds have passed
    ],
)
def test_steady_state_begins_after_the_first_update(updates, start):
    assert steady_start(list(map(float, range(len(updates)))), updates) == start


def test_the_file_of_metrics_gives_the_same_rate_as_the_run(fake_run):
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
    assert math.isnan(steady_rate(rows[:1], "updates"))
