# SPDX-License-Identifier: Apache-2.0
"""The alarm for actors that act with old weights: rings for them, for nobody else, and once."""

from __future__ import annotations

from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry
from veldt.telemetry.diagnosis import StaleWeightsAlarm, actors_with_weights


class Actors:
    """Two actors that deliver, seen once a second by an alarm."""

    def __init__(self) -> None:
        self.alarm = StaleWeightsAlarm(["actor-0", "actor-1"])
        self.telemetry = {name: NodeTelemetry() for name in ("actor-0", "actor-1")}
        self.now, self.updates, self.heard = 0.0, 0, []

    def second(self, version, delivered: int = 2, updates: int = 10) -> None:
        """`version` is that of actor-1; actor-0 always has the newest."""
        self.now += 1.0
        self.updates += updates
        for name, acted_with in (("actor-0", self.updates), ("actor-1", version)):
            self.telemetry[name].counter("trajectories").add(delivered)
            self.telemetry[name].gauge("acting_version").set(acted_with)
        snapshots = {name: each.snapshot() for name, each in self.telemetry.items()}
        self.heard += self.alarm.check(snapshots, self.updates, self.now)


def test_rings_for_an_actor_that_never_gets_new_weights():
    actors = Actors()
    for _ in range(100):
        actors.second(version=0)
    assert len(actors.heard) == 1
    assert actors.heard[0].startswith("actor-1 still acts with version 0 after")


def test_is_silent_while_lag_comes_and_goes():
    actors = Actors()
    for second in range(100):
        actors.second(version=max(0, actors.updates - 3 * (second % 20)))
    assert actors.heard == []


def test_is_silent_for_one_long_trajectory_and_for_a_learner_that_waits():
    actors = Actors()
    for _ in range(30):
        actors.second(version=0, delivered=0)
    actors.second(version=actors.updates)
    for _ in range(30):
        actors.second(version=actors.updates, updates=0)
    assert actors.heard == []


def test_who_holds_no_weights_is_not_watched():
    def watched(architecture: str) -> list[str]:
        options = RunOptions("CartPole-v1", backend="serial", num_actors=2, envs_per_actor=4)
        return actors_with_weights(make_plan(architecture, options, {}).topology)

    assert watched("seed_rl") == []
    assert watched("impala") == watched("a3c") == ["actor-0", "actor-1"]
