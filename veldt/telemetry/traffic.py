# SPDX-License-Identifier: Apache-2.0
"""Bytes that actors send and receive, from the counters of their channel ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from veldt.telemetry.counters import traffic_name
from veldt.topology import (
    BoardSpec,
    End,
    Node,
    QueueSpec,
    RequestsSpec,
    StreamSpec,
    Topology,
    stem,
)

_ROW_NUMBER_BYTES = 8
_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes per environment step between actors and all other nodes."""

    up: float
    """Sent by actors: observations, rewards and the like."""
    down: float
    """Received by actors: weights or actions."""


def item_bytes(end: End) -> tuple[float, float]:
    """(sent, received) per item that passes this end."""
    channel = end.channel
    if isinstance(channel, QueueSpec):
        size = float(channel.layout.nbytes)
        return (size, 0.0) if end.side == "sink" else (0.0, size)
    if isinstance(channel, BoardSpec):
        size = float(_WEIGHT_BYTES * channel.size)
        return (size, 0.0) if end.side == "sink" else (0.0, size)
    if isinstance(channel, StreamSpec):
        return float(channel.request.nbytes), float(channel.reply.nbytes)
    if isinstance(channel, RequestsSpec):
        return float(_ROW_NUMBER_BYTES), float(_ROW_NUMBER_BYTES)
    return 0.0, 0.0


def node_bytes(
    node: Node, counters: Mapping[str, float], users: Mapping[str, Collection[str]] | None = None
) -> tuple[float, float]:
    """(sent, received) by one node so far.

    `users` maps channels to process groups; channels of a single group are then left out."""
    sent = received = 0.0
    ends = {
        (stem(end.channel.name), end.side): end
        for _, end in node.ends()
        if users is None or len(users[end.channel.name]) > 1
    }
    for (channel, side), end in ends.items():
        is_writing = side in ("sink", "client")
        items = counters.get(traffic_name(channel, is_writing), 0.0)
        out, back = item_bytes(end)
        sent, received = sent + items * out, received + items * back
    return sent, received


def actor_traffic(topology: Topology, counters: Mapping[str, Mapping[str, float]]) -> Traffic:
    """Traffic of all nodes that step environments; `counters` by node."""
    up = down = steps = 0.0
    for node in topology.nodes:
        own = counters.get(node.name, {})
        if own.get("env_steps"):
            sent, received = node_bytes(node, own)
            up, down, steps = up + sent, down + received, steps + own["env_steps"]
    return Traffic(up / steps, down / steps) if steps else Traffic(0.0, 0.0)
