# SPDX-License-Identifier: Apache-2.0
"""A topology as a drawing, in text or Mermaid, or as plain data for other drawings. Made from the
real wiring, so it cannot lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from veldt.topology import READING_SIDES, WRITING_SIDES, Topology


def drawing(topology: Topology, format: str) -> str:
    if format == "mermaid":
        return _mermaid(topology)
    if format != "text":
        raise ValueError(f"unknown format '{format}'; use text or mermaid")
    return _text(topology)


def _text(topology: Topology) -> str:
    num_nodes, num_groups = len(topology.nodes), len(topology.groups())
    lines = [f"{topology.architecture}: {num_nodes} nodes in {num_groups} processes"]
    for kind, nodes in topology.kinds().items():
        lines.append(f"  {kind} x{len(nodes)}")
        for source, target, argument in topology.edges():
            if source == kind:
                lines.append(f"    {argument} -> [{target}]")
            if target == kind:
                lines.append(f"    {argument} <- [{source}]")
    lines.extend(f"  {line}" for line in _channels(topology))
    for group in topology.colocated:
        manner = "threads" if group.threads else "turns"
        lines.append(f"  one process ({manner}): {group.name}")
    return "\n".join(lines)


def _channels(topology: Topology) -> Iterator[str]:
    for queue in topology.queues:
        size, slots = queue.spec.layout.nbytes, queue.spec.num_slots
        yield f"[{queue.spec.name}] queue of {slots} slots, {size:,} bytes each"
    for board in topology.boards:
        size, history = board.spec.size, board.spec.history
        yield f"[{board.spec.name}] board, {size:,} float32, {history} kept"
    for requests in topology.requests:
        yield f"[{requests.spec.name}] requests about rows of [{requests.spec.queue.name}]"
    for stream in topology.streams:
        up, down = stream.spec.request.nbytes, stream.spec.reply.nbytes
        yield f"[{stream.spec.name}] streams, {up:,} bytes up and {down:,} bytes down per row"
    for shared in topology.shared:
        size, dtype = shared.spec.size, shared.spec.dtype
        yield f"[{shared.spec.name}] shared memory, {size:,} {dtype}, lock-free"


def _mermaid(topology: Topology) -> str:
    lines = ["flowchart LR"]
    for kind, nodes in topology.kinds().items():
        lines.append(f'  {_identifier(kind)}["{kind} x{len(nodes)}"]')
    for queue in topology.queues:
        lines.append(f'  {_identifier(queue.spec.name)}[("{queue.spec.name}")]')
    asked = [entry.spec.name for entry in topology.requests]
    for name in asked + [entry.spec.name for entry in topology.streams]:
        lines.append(f'  {_identifier(name)}(["{name}"])')
    memory = [entry.spec.name for entry in topology.boards]
    for name in memory + [entry.spec.name for entry in topology.shared]:
        lines.append(f"  {_identifier(name)}{{{{{name}}}}}")
    for source, target, argument in topology.edges():
        lines.append(f"  {_identifier(source)} -->|{argument}| {_identifier(target)}")
    return "\n".join(lines)


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")


def stem(channel: str) -> str:
    """The name without numbers, shared by channels of one kind: "replay-0-batches-1" and
    "replay-1-batches-0" are "replay-batches"."""
    return re.sub(r"-\d+", "", channel)


def plain_data(topology: Topology) -> dict[str, Any]:
    """What a drawing needs, as JSON can hold it; channels of one kind are one."""
    channels: dict[str, dict[str, Any]] = {}
    sorts: dict[str, list[Any]] = {
        "queue": topology.queues,
        "board": topology.boards,
        "requests": topology.requests,
        "stream": topology.streams,
        "shared": topology.shared,
    }
    for sort, handles in sorts.items():
        for handle in handles:
            entry = channels.setdefault(stem(handle.spec.name), {"sort": sort, "count": 0})
            entry["count"] += 1
            if sort == "queue":
                entry["slots"] = entry.get("slots", 0) + handle.spec.num_slots
    ends = [(node.kind, end) for node in topology.nodes for _, end in node.ends()]
    writes = {(kind, stem(end.channel.name)) for kind, end in ends if end.side in WRITING_SIDES}
    reads = {(kind, stem(end.channel.name)) for kind, end in ends if end.side in READING_SIDES}
    links = dict.fromkeys((kind, stem(end.channel.name)) for kind, end in ends)
    return {
        "architecture": topology.architecture,
        "roles": {kind: [node.name for node in nodes] for kind, nodes in topology.kinds().items()},
        "processes": [[node.name for node in group.nodes] for group in topology.groups()],
        "channels": channels,
        "links": [
            {"role": link[0], "channel": link[1], "writes": link in writes, "reads": link in reads}
            for link in links
        ],
    }
