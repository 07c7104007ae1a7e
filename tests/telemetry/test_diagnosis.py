# SPDX-License-Identifier: Apache-2.0
"""The closing line names the limit and a remedy for each case, with options that the run has."""

import re
from typing import Any

import pytest

from veldt.architectures import example_env
from veldt.options import RunOptions
from veldt.options.fields import flat_keys
from veldt.run.plan import make_plan
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.counters import NodeTelemetry
from veldt.telemetry.diagnosis import Load, bottleneck, describe_bottleneck

EVERY_OPTION = dict.fromkeys(
    ("num_actors", "envs_per_actor", "device", "num_learners", "num_predictors", "num_trainers",
     "num_policy_workers", "num_shards", "batch_size", "queue_trajectories",
     "env_steps_per_update", "replay_ratio"), 1
)  # fmt: skip


def line(queue_fill: float | None = None, **busy: float) -> str:
    loads = [Load({kind: share}, 4 if kind == "actor" else 1) for kind, share in busy.items()]
    fill = {} if queue_fill is None else {"trajectories": queue_fill}
    return describe_bottleneck(loads, EVERY_OPTION, fill)


@pytest.mark.parametrize(
    ("busy", "start", "remedy"),
    [
        ({"learner": 0.93, "actor": 0.59}, "learner 93% busy, actors waiting 41%:", "device"),
        ({"learner": 0.3, "actor": 0.97}, "actors 97% busy, learner waiting 70%:", "num_actors"),
        ({"parameter_server": 0.9, "learner": 0.2}, "parameter server 90% busy", "num_shards"),
        ({"league": 0.9, "learner": 0.2}, "league 90% busy", "league is the limit"),
        ({"learner": 0.95, "actor": 0.9}, "learner 95% and actors 90% busy:", "balanced"),
    ],
)
def test_a_busy_kind_is_named_with_its_remedy(busy, start, remedy):
    found = line(0.5, **busy)
    assert found.startswith(start)
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("queue_fill", "cause"),
    [
        (0.9, "reader is held back"),
        (0.1, "writers are held back"),
        (0.5, "bursts"),
        (None, "wait for each other"),
    ],
)
def test_if_no_role_is_busy_the_queue_shows_why(queue_fill, cause):
    found = line(queue_fill, learner=0.4, actor=0.5)
    assert found.startswith("no role is the limit (actors waiting 50%, learner waiting 60%):")
    assert cause in found


def plan_of(architecture: str, backend: str) -> Any:
    options = RunOptions(example_env(architecture), backend=backend, device="cpu", envs_per_actor=2)
    return make_plan(architecture, options, {})


def busy_run(plan: Any, busy: dict[str, float]) -> RunTelemetry:
    """A run of ten seconds whose nodes worked for these shares of it, by kind."""
    nodes = [(node.name, node.kind) for node in plan.topology.nodes]
    run = RunTelemetry(nodes, [name for name, _ in nodes])
    blocks = {name: NodeTelemetry() for name, _ in nodes}
    fill = {queue.spec.name: 0.1 for queue in plan.topology.queues}
    for now in (0.0, 10.0):
        for name, kind in nodes:
            blocks[name].stage("work").add(busy.get(kind, 0.01) * now)
        run.update({name: block.snapshot() for name, block in blocks.items()}, now, fill)
    return run


@pytest.mark.parametrize("architecture", ["apex", "sample_factory"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_advice_names_only_what_the_run_has(architecture, backend):
    """With each kind as the limit, and with none."""
    plan = plan_of(architecture, backend)
    known = {*flat_keys(plan.options), *flat_keys(plan.config)}
    for limit in (*plan.topology.kinds(), None):
        run = busy_run(plan, {} if limit is None else {limit: 0.95})
        in_one_thread = backend == "serial"
        found = bottleneck(run, plan.topology, plan.options, plan.config, in_one_thread)
        assert found
        assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", found.partition(": ")[2])) <= known
        assert backend == "serial" or "--backend" not in found
        if limit == "actor" and backend == "process":
            assert "raise num_actors" in found


def test_more_threads_are_offered_where_there_would_be_more():
    texts = {}
    for name in ("dqn", "a3c"):
        plan = plan_of(name, "serial")
        run = busy_run(plan, {"actor": 0.7, "learner": 0.25})
        texts[name] = bottleneck(run, plan.topology, plan.options, plan.config, True)
    assert texts["a3c"].endswith("--backend process runs them in parallel")
    # The nodes of DQN share one thread on every backend.
    assert "in turn 96% (actor 70%, learner 25%, replay 1%) busy: raise envs" in texts["dqn"]
