# SPDX-License-Identifier: Apache-2.0
"""Where a number of actors may be MIN..MAX, and with what reason it is refused elsewhere."""

from __future__ import annotations

import pytest

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import leaves
from veldt.options.text import reader, words
from veldt.run.elastic import elastic_actors
from veldt.run.plan import make_plan

NUM_ACTORS = leaves(RunOptions)["num_actors"]


def planned(architecture, num_actors="2..8", backend="ray", env="CartPole-v1", **own):
    options = RunOptions(env=env, backend=backend, num_actors=num_actors)
    return make_plan(architecture, options, own)


def specs(plan):
    return [channel.spec for channel in plan.topology.channels()]


@pytest.mark.parametrize(
    ("architecture", "own"),
    [
        ("impala", {}),
        ("apex", {}),
        ("seed_rl", {}),
        ("seed_rl", {"algorithm": "r2d2"}),
        ("league", {"env": "veldt:kuhn"}),
    ],
)
def test_channels_are_made_for_the_most(architecture, own):
    own = {"batch_trajectories": 1, **own} if architecture == "impala" else own
    plan, fixed = (planned(architecture, number, **own) for number in ("2..8", 8))
    elastic = elastic_actors(plan.topology, plan.options)
    assert elastic is not None
    assert elastic.groups == {f"actor-{index}" for index in range(8)}
    assert (elastic.least, elastic.needed) == (2, 1)
    assert specs(plan) == specs(fixed)
    assert plan.rows_per_update() == fixed.rows_per_update()
    assert elastic_actors(fixed.topology, fixed.options) is None


@pytest.mark.parametrize(("num_actors", "expected"), [("2..8", 1), ("4..8", 4), (8, 8)])
def test_a_batch_waits_for_no_more_actors_than_the_run_begins_with(num_actors, expected):
    one = planned("impala", num_actors, batch_trajectories=1).rows_per_update()
    assert planned("impala", num_actors).rows_per_update() == expected * one


@pytest.mark.parametrize(
    ("architecture", "own", "reason"),
    [
        ("a2c", {}, "holds a trajectory of every actor"),
        ("gorila", {}, "none can come late"),
        ("dqn", {}, "dqn has one actor"),
        ("sample_factory", {}, "use --backend process"),
        ("impala", {"num_learners": 2}, "divided among several learners"),
        ("impala", {"num_policies": 2}, "divided among several learners"),
        ("impala", {"batch_trajectories": 5}, r"use 3\.\.8, or lower --batch-trajectories"),
        ("impala", {"backend": "process"}, "give one number, or --backend ray"),
        ("impala", {"backend": "serial"}, "give one number, or --backend ray"),
        ("seed_rl", {"env": "external:127.0.0.1:0"}, "give one number"),
    ],
)
def test_it_is_refused_with_a_reason(architecture, own, reason):
    with pytest.raises(ConfigurationError, match=reason):
        planned(architecture, **own)


@pytest.mark.parametrize(
    "text", ["8..2", "2...8", "0..3", "3..", "..3", "a..b", "1..5000", "1..-1"]
)
def test_what_is_no_span_is_refused(text):
    assert reader(NUM_ACTORS.kind)[0](text) == text
    with pytest.raises(ConfigurationError, match=r"use a number or MIN\.\.MAX"):
        RunOptions(env="CartPole-v1", backend="ray", num_actors=text)


def test_it_is_read_and_written_as_it_is_given():
    read, metavar = reader(NUM_ACTORS.kind)
    assert (read("4"), read("2..8"), read("none")) == (4, "2..8", None)
    assert metavar == "N|MIN..MAX"
    assert words(NUM_ACTORS, "2..8") == ["--num-actors", "2..8"]
    with pytest.raises(ConfigurationError, match="use one of the two"):
        RunOptions(env="CartPole-v1", backend="ray", num_actors="2..8", autotune=True)
