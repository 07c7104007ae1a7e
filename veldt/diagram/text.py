# SPDX-License-Identifier: Apache-2.0
"""The diagram in words and in Mermaid, every channel by its own name."""

from __future__ import annotations

from veldt.diagram.description import channels
from veldt.topology import (
    BoardSpec,
    Channel,
    QueueSpec,
    RequestsSpec,
    SharedSpec,
    StreamSpec,
    Topology,
)

_MERMAID_SHAPES = {
    "queue": '[("{}")]',
    "requests": '(["{}"])',
    "stream": '(["{}"])',
    "board": "{{{{{}}}}}",
    "shared": "{{{{{}}}}}",
}
"""In the order in which channels are listed: what looks the same stands together."""


def text(topology: Topology) -> str:
    """Roles with their channels, then the channels with their sizes, then who shares a process."""
    num_nodes, num_groups = len(topology.nodes), len(topology.groups())
    lines = [f"{topology.architecture}: {num_nodes} nodes in {num_groups} processes"]
    for kind, nodes in topology.kinds().items():
        lines.append(f"  {kind} x{len(nodes)}")
        for source, target, argument in topology.edges():
            if source == kind:
                lines.append(f"    {argument} -> [{target}]")
            if target == kind:
                lines.append(f"    {argument} <- [{source}]")
    lines.extend(f"  [{spec.name}] {_in_words(spec)}" for _, spec in channels(topology))
    for group in topology.colocated:
        manner = "threads" if group.threads else "turns"
        lines.append(f"  one process ({manner}): {group.name}")
    return "\n".join(lines)


def _in_words(channel: Channel) -> str:
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


def mermaid(topology: Topology) -> str:
    """A flowchart that renderers of Markdown draw."""
    lines = ["flowchart LR"]
    for kind, nodes in topology.kinds().items():
        lines.append(f'  {_identifier(kind)}["{kind} x{len(nodes)}"]')
    for shape, form in _MERMAID_SHAPES.items():
        for sort, spec in channels(topology):
            if sort == shape:
                lines.append(f"  {_identifier(spec.name)}{form.format(spec.name)}")
    for source, target, argument in topology.edges():
        lines.append(f"  {_identifier(source)} -->|{argument}| {_identifier(target)}")
    return "\n".join(lines)


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")
