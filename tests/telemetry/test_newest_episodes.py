# SPDX-License-Identifier: Apache-2.0
"""The return of the episodes that began last."""

from __future__ import annotations

import pytest

from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.counters import NodeTelemetry
from veldt.telemetry.newest_episodes import NewestEpisodes

MEAN, AGE = "return/newest_100", "return/newest_100_age_env_steps"


def test_those_that_began_last_count_though_others_end_after_them():
    """Ten environments. 300 episodes of 1,000 steps begin with a policy that earns 0 and end
    together with 300 of 10 steps, of one that earns 1."""
    newest = NewestEpisodes(num_envs=10)
    newest.take([(1.0, 10)] * 300 + [(0.0, 1000)] * 300, env_steps=50_000)
    assert newest.metrics(50_500) == {MEAN: 1.0, AGE: 10 * 10 + 500}


def test_only_the_last_thousand_to_end_are_known():
    newest = NewestEpisodes(num_envs=2)
    newest.take([(5.0, 1)], env_steps=10_000)
    newest.take([(3.0, 4000)] * 999, env_steps=10_000)
    assert newest.metrics(10_000)[MEAN] == pytest.approx((5.0 + 99 * 3.0) / 100)
    newest.take([(3.0, 4000)], env_steps=10_000)
    assert newest.metrics(10_000)[MEAN] == 3.0


def test_nothing_is_said_without_episodes_or_the_number_of_environments():
    assert NewestEpisodes(num_envs=4).metrics(100) == {}
    unknown = NewestEpisodes()
    unknown.take([(1.0, 10)], 100)
    assert unknown.metrics(100) == {}


def test_a_run_shows_and_keeps_it():
    def telemetry():
        return RunTelemetry([("actor-0", "actor")], num_envs=4)

    node, run = NodeTelemetry(), telemetry()
    node.counter("env_steps").add(100)
    node.episode([2.0, 4.0], [5, 15])
    run.update({"actor-0": node.snapshot()}, 0.0)
    shown = {name: value for name, value in run.metrics().items() if name in (MEAN, AGE)}
    assert shown == {MEAN: 3.0, AGE: 40.0}
    resumed = telemetry()
    resumed.load_state(run.state())
    resumed.update({"actor-0": node.snapshot()}, 1.0)
    assert resumed.metrics()[MEAN] == 3.0
    older = {name: value for name, value in run.state().items() if "newest" not in name}
    resumed = telemetry()
    resumed.load_state(older)
    assert MEAN not in resumed.metrics()
