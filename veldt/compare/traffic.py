# SPDX-License-Identifier: Apache-2.0
"""Bytes that nodes send and receive, from the counters of their channels."""

from __future__ import annotations

from collections.abc import Mapping

from veldt.telemetry.counters import traffic_name
from veldt.topology import (
    WRITING_SIDES,
    BoardSpec,
    End,
    QueueSpec,
    RequestsSpec,
    StreamSpec,
    Topology,
    stem,
)


def item_bytes(end: End) -> tuple[float, float]:
    """(sent, received) per item that passes this end of a channel."""
    match end.channel:
        case QueueSpec(layout=layout):
            size = float(layout.nbytes)
        case BoardSpec(size=weights):
            size = 4.0 * weights
        case StreamSpec(request=request, reply=reply):
            return float(request.nbytes), float(reply.nbytes)
        case RequestsSpec():  # a row number each way
            return 8.0, 8.0
        case _:
            return 0.0, 0.0
    return (size, 0.0) if end.side == "sink" else (0.0, size)


def actor_traffic(
    topology: Topology, counters: Mapping[str, Mapping[str, float]]
) -> tuple[float, float]:
    """Bytes per env step (sent, received) by nodes that step environments; `counters` by node."""
    sent = received = steps = 0.0
    ahead = any("collected_env_steps" in own for own in counters.values())
    stepped = "collected_env_steps" if ahead else "env_steps"
    for node in topology.nodes:
        own = counters.get(node.name, {})
        if not own.get(stepped):
            continue
        steps += own[stepped]
        ends = {(stem(end.channel.name), end.side): end for _, end in node.ends()}
        for (channel, side), end in ends.items():
            items = own.get(traffic_name(channel, side in WRITING_SIDES), 0.0)
            up, down = item_bytes(end)
            sent, received = sent + items * up, received + items * down
    return (sent / steps, received / steps) if steps else (0.0, 0.0)
