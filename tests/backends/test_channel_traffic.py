# SPDX-License-Identifier: Apache-2.0
"""The items that pass each end of a channel are counted, for every sort of channel."""

import pytest

from veldt.backends.base import counting
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
