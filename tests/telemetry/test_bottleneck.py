# SPDX-License-Identifier: Apache-2.0
"""The closing line names the limit and a remedy for each case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from veldt.telemetry.bottleneck import KindLoad, describe_bottleneck

MakeRun = Callable[..., Any]


def line(queue_fill: float | None = None, **busy: float) -> str:
    loads = [KindLoad(kind, 4 if kind == "actor" else 1, share) for kind, share in busy.items()]
    return describe_bottleneck(loads, {} if queue_fill is None else {"trajectories": queue_fill})


@pytest.mark.parametrize(
    ("busy", "start", "remedy"),
    [
        ({"learner": 0.93, "actor": 0.59}, "learner 93% busy, actors waiting 41%:", "device"),
        ({"learner": 0.3, "actor": 0.97}, "actors 97% busy, learner waiting 70%:", "num_actors"),
        ({"predictor": 0.9, "actor": 0.2}, "predictor 90% busy, actors waiting 80%:", "predictors"),
        ({"inference_server": 0.9, "learner": 0.2}, "inference server 90% busy", "inference node"),
        ({"replay": 0.9, "learner": 0.2}, "replay 90% busy", "replay shards"),
        ({"parameter_server": 0.9, "learner": 0.2}, "parameter server 90% busy", "shards"),
        ({"league": 0.9, "learner": 0.2}, "league 90% busy", "league is the limit"),
        ({"learner": 0.95, "actor": 0.9}, "learner 95% and actors 90% busy:", "balanced"),
        ({"worker": 0.99}, "worker 99% busy:", "num_actors"),
    ],
)
def test_a_busy_kind_is_named_with_its_remedy(
    busy: dict[str, float], start: str, remedy: str
) -> None:
    found = line(0.5, **busy)
    assert found.startswith(start)
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("queue_fill", "cause"),
    [(0.9, "reader is held back"), (0.1, "writers are held back"), (0.5, "bursts")],
)
def test_when_nobody_is_busy_the_queue_tells_why(queue_fill: float, cause: str) -> None:
    found = line(queue_fill, learner=0.4, actor=0.5)
    assert found.startswith("nobody is busy (actors waiting 50%, learner waiting 60%):")
    assert cause in found


def test_without_queues_the_nodes_wait_for_each_other() -> None:
    assert "wait for each other" in line(None, learner=0.4, actor=0.5)


def test_evaluators_are_never_the_limit() -> None:
    assert line(0.5, evaluator=1.0) == ""
    assert line(0.5, evaluator=1.0, learner=0.9, actor=0.1).startswith("learner 90% busy, actors")


def test_a_run_names_its_limit_from_the_steady_part(fake_run: MakeRun) -> None:
    fake = fake_run("actor-0", "actor-1", "learner-0")
    fake.update()
    fake.spend("learner-0", "wait", 20.0)  # the start, while the learner has nothing to do
    fake.nodes["learner-0"].counter("updates").add()
    fake.update(20.0)
    for _ in range(20):
        fake.spend("learner-0", "wait", 0.07)
        fake.spend("actor-0", "wait", 0.4)
        fake.spend("actor-1", "wait", 0.42)
        fake.update(1.0, trajectories=1.0)
    assert fake.run.bottleneck().startswith("learner 93% busy, actors waiting 41%:")
