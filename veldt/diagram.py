# SPDX-License-Identifier: Apache-2.0
"""A topology as text, as a Mermaid flowchart and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from veldt.topology import (
    READING_SIDES,
    WRITING_SIDES,
    BoardSpec,
    Channel,
    QueueSpec,
    RequestsSpec,
    SharedSpec,
    StreamSpec,
    Topology,
    stem,
)

_SORTS = {
    QueueSpec: "queue",
    BoardSpec: "board",
    RequestsSpec: "requests",
    StreamSpec: "stream",
    SharedSpec: "shared",
}
_SHAPES = {
    "queue": '[("{}")]',
    "requests": '(["{}"])',
    "stream": '(["{}"])',
    "board": '{{{{"{}"}}}}',
    "shared": '{{{{"{}"}}}}',
}
EdgeNotes = Mapping[tuple[str, str, bool], str]
"""Labels of arrows, by role, channel, and whether the role writes."""


def describe(topology: Topology) -> dict[str, Any]:
    """Roles, processes, channels and links as JSON values; channels of one kind are merged."""
    channels: dict[str, dict[str, Any]] = {}
    for spec in (channel.spec for channel in topology.channels()):
        entry = channels.setdefault(stem(spec.name), {"sort": _SORTS[type(spec)], "count": 0})
        entry["count"] += 1
        if isinstance(spec, QueueSpec):
            entry["slots"] = entry.get("slots", 0) + spec.num_slots
    sides: dict[tuple[str, str], set[str]] = {}
    for node in topology.nodes:
        for _, end in node.ends():
            sides.setdefault((node.kind, stem(end.channel.name)), set()).add(end.side)
    return {
        "architecture": topology.architecture,
        "roles": {kind: [node.name for node in nodes] for kind, nodes in topology.kinds().items()},
        "processes": [[node.name for node in group.nodes] for group in topology.groups()],
        "channels": channels,
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


def mermaid(
    description: dict[str, Any],
    role_notes: Mapping[str, str] | None = None,
    channel_notes: Mapping[str, str] | None = None,
    edge_notes: EdgeNotes | None = None,
) -> str:
    """A Mermaid flowchart of what `describe` returned; notes are added to the labels."""
    lines = ["flowchart LR"]
    for role, nodes in description["roles"].items():
        label = _label(role, len(nodes), (role_notes or {}).get(role))
        lines.append(f'  {_identifier("role", role)}["{label}"]')
    for channel, entry in description["channels"].items():
        label = _label(channel, entry["count"], (channel_notes or {}).get(channel))
        shape = _SHAPES[entry["sort"]].format(label)
        lines.append(f"  {_identifier('channel', channel)}{shape}")
    for link in description["links"]:
        role, channel = _identifier("role", link["role"]), _identifier("channel", link["channel"])
        for is_writing, is_used in ((True, link["writes"]), (False, link["reads"])):
            if is_used:
                note = (edge_notes or {}).get((link["role"], link["channel"], is_writing))
                arrow = f'-->|"{note}"|' if note else "-->"
                ends = (role, channel) if is_writing else (channel, role)
                lines.append(f"  {ends[0]} {arrow} {ends[1]}")
    return "\n".join(lines)


def text(topology: Topology) -> str:
    """Roles with their channels, then the size of every channel, then shared processes."""
    num_nodes, num_groups = len(topology.nodes), len(topology.groups())
    lines = [f"{topology.architecture}: {num_nodes} nodes in {num_groups} processes"]
    for kind, nodes in topology.kinds().items():
        lines.append(f"  {kind} x{len(nodes)}")
        for argument, end in dict.fromkeys(end for node in nodes for end in node.ends()):
            if end.side in WRITING_SIDES:
                lines.append(f"    {argument} -> [{end.channel.name}]")
            if end.side in READING_SIDES:
                lines.append(f"    {argument} <- [{end.channel.name}]")
    lines.extend(f"  [{each.spec.name}] {_size(each.spec)}" for each in topology.channels())
    for group in topology.colocated:
        manner = "threads" if group.threads else "alternating"
        lines.append(f"  one process ({manner}): {group.name}")
    return "\n".join(lines)


def _size(channel: Channel) -> str:
    match channel:
        case QueueSpec(layout=layout, num_slots=slots):
            return f"queue of {slots} slots, {layout.nbytes:,} bytes each"
        case BoardSpec(size=size, history=history):
            return f"board, {size:,} float32, {history} kept"
        case RequestsSpec(queue=queue):
            return f"requests about rows of [{queue.name}]"
        case StreamSpec(request=up, reply=down):
            return f"streams, {up.nbytes:,} bytes up and {down.nbytes:,} bytes down per row"
        case SharedSpec(size=size, dtype=dtype):
            return f"shared memory, {size:,} {dtype}, lock-free"


def _label(name: str, count: int, note: str | None) -> str:
    title = f"{name} x{count}" if count > 1 else name
    return f"{title}<br>{note}" if note else title


def _identifier(sort: str, name: str) -> str:
    """A name that is unique and valid in Mermaid, where dots and dashes have a meaning."""
    return f"{sort}_{name}".replace("-", "_").replace(".", "_").replace(" ", "_")
