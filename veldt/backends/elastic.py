# SPDX-License-Identifier: Apache-2.0
"""Nodes that may come and go while a run goes on, as the machines of a cluster do."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.topology import READING_SIDES, WRITING_SIDES, End, Topology


@dataclass(frozen=True)
class Elastic:
    """The groups of which any may be missing. `least` of them must be there before the run begins;
    afterwards it goes on as long as there are `needed`."""

    groups: frozenset[str]
    least: int
    needed: int = 1


@dataclass
class ActorCounts:
    """How many there are now, were there at most at a time, joined after the run had begun, and
    were lost."""

    now: int = 0
    most: int = 0
    added: int = 0
    lost: int = 0

    def joined(self, is_late: bool) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.added += is_late

    def left(self) -> None:
        self.now -= 1
        self.lost += 1


def needed_writers(topology: Topology, writers: frozenset[str]) -> int:
    """How many of the nodes named `writers` a batch needs: each may have only its own share of a
    queue's slots under way."""
    needed = 1
    for queue in topology.queues:
        name = queue.spec.name
        sinks = {node for node, end in _ends(topology, name) if end.side in WRITING_SIDES}
        if not writers.intersection(sinks):
            continue
        batches = (e.slots_per_batch for _, e in _ends(topology, name) if e.side in READING_SIDES)
        share = max(1, queue.spec.num_slots // len(sinks))
        needed = max(needed, -(-max(batches, default=1) // share))
    return needed


def _ends(topology: Topology, channel: str) -> list[tuple[str, End]]:
    return [
        (node.name, end)
        for node in topology.nodes
        for _, end in node.ends()
        if end.channel.name == channel
    ]
