# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom as plain data: what the pictures are drawn from, and topology.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from veldt.topology import READING_SIDES, WRITING_SIDES, Channel, Topology


def stem(channel: str) -> str:
    """The name without numbers, shared by channels of one kind: "replay-0-batches-1" and
    "replay-1-batches-0" are "replay-batches"."""
    return re.sub(r"-\d+", "", channel)


def channels(topology: Topology) -> Iterator[tuple[str, Channel]]:
    """Every channel, after its sort."""
    yield from (("queue", handle.spec) for handle in topology.queues)
    yield from (("board", handle.spec) for handle in topology.boards)
    yield from (("requests", handle.spec) for handle in topology.requests)
    yield from (("stream", handle.spec) for handle in topology.streams)
    yield from (("shared", handle.spec) for handle in topology.shared)


def describe(topology: Topology) -> dict[str, Any]:
    """Roles, processes, channels and links as JSON can hold them; channels of one kind are one."""
    found: dict[str, dict[str, Any]] = {}
    for sort, spec in channels(topology):
        entry = found.setdefault(stem(spec.name), {"sort": sort, "count": 0})
        entry["count"] += 1
        if sort == "queue":
            entry["slots"] = entry.get("slots", 0) + spec.num_slots  # type: ignore[union-attr]
    sides: dict[tuple[str, str], set[str]] = {}
    for node in topology.nodes:
        for _, end in node.ends():
            sides.setdefault((node.kind, stem(end.channel.name)), set()).add(end.side)
    return {
        "architecture": topology.architecture,
        "roles": {kind: [node.name for node in nodes] for kind, nodes in topology.kinds().items()},
        "processes": [[node.name for node in group.nodes] for group in topology.groups()],
        "channels": found,
        "links": [
            {
                "role": role,
                "channel": channel,
                "writes": not used.isdisjoint(WRITING_SIDES),
                "reads": not used.isdisjoint(READING_SIDES),
            }
            for (role, channel), used in sides.items()
        ],
    }
