# SPDX-License-Identifier: Apache-2.0
"""What passes each end of a channel is counted, for every sort of channel."""

from __future__ import annotations

import pytest

from veldt.backends.base import counting
from veldt.options import RunOptions
from veldt.run.driver import Run
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry, traffic_name
from veldt.topology import BoardSpec, End, QueueSpec, RequestsSpec, SharedSpec, StreamSpec
from veldt.types import Layout

LAYOUT = Layout({})
QUEUE = QueueSpec("replay-0-trajectories", LAYOUT, 2)
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
        (End(QUEUE, "sink"), "commit", ("sent.replay-trajectories", 4)),
        (
            End(QUEUE, "source", slots_per_batch=3),
            "take_batch",
            ("taken.replay-trajectories", 6),
        ),
        (End(BoardSpec("weights-1", 5, 2), "sink"), "publish", ("sent.weights", 4)),
        (End(BoardSpec("weights-1", 5, 2), "source"), "pull", ("taken.weights", 2)),
        (End(RequestsSpec("asked", QUEUE, 1), "client"), "send", ("sent.asked", 4)),
        (End(RequestsSpec("asked", QUEUE, 1), "server"), "take", ("taken.asked", 2)),
        (End(STREAM, "client"), "send", ("sent.stream", 4)),
        (End(STREAM, "server"), "take", ("taken.stream", 2)),
    ],
)
def test_what_passes_is_counted_and_what_comes_back_empty_is_not(end, call, counted):
    telemetry = NodeTelemetry()
    port = counting(Port(), end, telemetry)
    answers = [getattr(port, call)(1, newer_than=2) for _ in range(4)]
    assert telemetry.snapshot().counters == dict([counted])
    if call not in ("commit", "publish", "send"):
        assert answers == ["something", None] * 2


def test_shared_memory_is_left_as_it_is():
    telemetry, memory = NodeTelemetry(), object()
    assert counting(memory, End(SharedSpec("s", 1, "float32"), "both"), telemetry) is memory
    assert telemetry.snapshot().counters == {}


def test_a_long_name_is_cut_to_what_a_counter_can_have():
    telemetry = NodeTelemetry()
    counting(Port(), End(QueueSpec("q" * 60, LAYOUT, 1), "sink"), telemetry).commit(1)
    assert telemetry.snapshot().counters == {traffic_name("q" * 60, is_writing=True): 1}


@pytest.mark.parametrize("architecture", ["gorila", "seed_rl", "sample_factory"])
def test_a_run_counts_what_its_roles_count(architecture, tmp_path):
    """The roles' own counters and those of their ports tell the same story."""
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
        asked = {"seed_rl": "stream", "sample_factory": "requests"}[architecture]
        assert totals[f"taken.{asked}"] >= totals["inference_requests"] > 0
        assert totals[f"sent.{asked}"] >= totals[f"taken.{asked}"]
