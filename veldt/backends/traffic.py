# SPDX-License-Identifier: Apache-2.0
"""What passes each end of a channel, counted by the node at that end.

The numbers lie among the node's counters, so they work on every backend, outlive a restart and are
part of every checkpoint.
"""

from __future__ import annotations

from typing import Any

from veldt.telemetry.counters import NodeTelemetry, traffic_name
from veldt.topology import WRITING_SIDES, BoardSpec, End, QueueSpec, SharedSpec, stem

_PASSED_BY = {
    (QueueSpec, "sink"): "commit",
    (QueueSpec, "source"): "take_batch",
    (BoardSpec, "sink"): "publish",
    (BoardSpec, "source"): "pull",
}
"""The call of a port that lets something pass; questions are sent by clients, taken by servers."""


def counting(port: Any, end: End, telemetry: NodeTelemetry) -> Any:
    """The same port, whose calls that let something pass are counted from now on. Nothing passes
    through shared memory: it lies still and is written in place."""
    if isinstance(end.channel, SharedSpec):
        return port
    is_writing = end.side in WRITING_SIDES
    method = _PASSED_BY.get((type(end.channel), end.side), "send" if is_writing else "take")
    counter = telemetry.counter(traffic_name(stem(end.channel.name), is_writing))
    call = getattr(port, method)
    items = end.slots_per_batch

    def sending(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        counter.add()

    def taking(*arguments: Any, **named: Any) -> Any:
        taken = call(*arguments, **named)
        if taken is not None:
            counter.add(items)
        return taken

    setattr(port, method, sending if is_writing else taking)
    return port
