# SPDX-License-Identifier: Apache-2.0
"""A topology as a drawing, in text or Mermaid. Made from the real wiring, so it cannot lie."""

from __future__ import annotations

from collections.abc import Iterator

from veldt.topology import Topology


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
