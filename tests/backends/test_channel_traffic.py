# SPDX-License-Identifier: Apache-2.0
"""The items that pass each end of a channel are counted, for every sort of channel."""

from __future__ import annotations

import pytest

from veldt.backends.base import counting
from veldt.options import RunOptions
from veldt.run.driver import Run
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import BoardSpec, End, QueueSpec, RequestsSpec, SharedSpec, StreamSpec
from veldt.types import Layout

LAYOUT = Layout({})
QUEUE = QueueSpec("replay-0-trajectories", LAYOUT, 2)
BOARD = BoardSpec("weights-1", 5, 2)
STREAM = StreamSpec("stream", LAYOUT, LAYOUT, 1, 1)


class Port:
    """Lets something pass every other time."""

    def __init__(self) -> None:
        self.calls = 0

    def pass_on(self, *arguments: object, **named: object) -> object:
        self.calls += 1
        return "something" if self.calls % 2 else None

    commit = take_batch = publish = pull = send = take = pass_on


@pytest.mark.parametrize(
    ("end", "call", "counted"),
    [
        (End(QUEUE, "sink"), "commit", {"sent.replay-trajectories": 4}),
        (End(QUEUE, "source", slots_per_batch=3), "take_batch", {"taken.replay-trajectories": 6}),
        (End(BOARD, "sink"), "publish", {"sent.weights": 4}),
        (End(BOARD, "source"), "pull", {"taken.weights": 2}),
        (End(RequestsSpec("asked", QUEUE, 1), "client"), "send", {"sent.asked": 4}),
        (End(STREAM, "server"), "take", {"taken.stream": 2}),
        (End(SharedSpec("s", 1, "float32"), "both"), "take", {}),
    ],
)
def test_what_passes_is_counted_and_what_comes_back_empty_is_not(end, call, counted):
    telemetry = NodeTelemetry()
    port = counting(Port(), end, telemetry)
    answers = [getattr(port, call)(1, newer_than=2) for _ in range(4)]
    assert telemetry.snapshot().counters == counted
    if end.side == "source":
        assert answers == ["something", None] * 2


@pytest.mark.parametrize("architecture", ["gorila", "sample_factory"])
def test_a_run_counts_what_its_roles_count(architecture, tmp_path):
    options = RunOptions(
        "CartPole-v1",
        backend="serial",
        envs_per_actor=2,
        num_actors=2,
        total_env_steps=1500,
        evaluation_episodes=0,
        quiet=True,
        run_dir=str(tmp_path / "run"),
    )
    run = Run(make_plan(architecture, options, {}))
    run.execute()
    totals = run._telemetry.totals
    if architecture == "gorila":
        assert totals["sent.gradients"] == totals["gradients_sent"] * 2  # to each of two shards
        assert totals["sent.replay-trajectories"] == totals["trajectories"]
    else:
        assert totals["taken.requests"] >= totals["inference_requests"] > 0
        assert totals["sent.requests"] >= totals["taken.requests"]
