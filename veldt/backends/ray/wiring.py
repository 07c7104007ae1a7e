# SPDX-License-Identifier: Apache-2.0
"""The group of nodes at each end of each channel, where groups share no memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from veldt.backends.ray.channels import ClusterLink
from veldt.backends.shared_memory.fabric import Link, link_for
from veldt.errors import ConfigurationError
from veldt.topology import READING_SIDES, WRITING_SIDES, Group, QueueSpec, Topology


@dataclass(frozen=True)
class Ends:
    """Group name -> number of its nodes, at both ends of one channel."""

    writers: dict[str, int]
    readers: dict[str, int]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys((*self.writers, *self.readers)))


class Wiring:
    """The ends of every channel by name; refuses topologies that need shared memory."""

    def __init__(self, topology: Topology) -> None:
        self.groups = {group.name: group for group in topology.groups()}
        self.dispensable = {g.name for g in self.groups.values() if topology.only_feeds(g.nodes)}
        """Groups that no other one depends on."""
        channels = (channel.spec.name for channel in topology.channels())
        self.ends = {name: _ends(name, self.groups.values()) for name in channels}
        refused = [s.spec.name for s in topology.shared] + [r.spec.name for r in topology.requests]
        for name in refused:
            self._refuse(name)
        for queue in topology.queues:
            self._require_one_consumer(queue.spec.name)
        self._boards = [board.spec.name for board in topology.boards]
        self._streams = {stream.spec.name: stream.spec for stream in topology.streams}
        self._queues = {queue.spec.name: queue.spec for queue in topology.queues}

    def _refuse(self, name: str) -> None:
        groups = ", ".join(self.ends[name].groups)
        raise ConfigurationError(
            f"{groups} use the shared memory '{name}', but processes on Ray share no memory; use"
            " --backend process"
        )

    def _require_one_consumer(self, name: str) -> None:
        consumers = list(self.ends[name].readers)
        if len(consumers) > 1:
            raise ConfigurationError(
                f"the queue '{name}' is consumed by {', '.join(consumers)}, but on Ray it is stored"
                " in the process of one consumer; use --backend process, or put them into one"
                " process"
            )

    def consumer(self, queue: str) -> str | None:
        return next(iter(self.ends[queue].readers), None)

    def writer(self, board: str) -> str | None:
        return next(iter(self.ends[board].writers), None)

    def consumers_for(self, group: str) -> dict[str, str]:
        """Queue that `group` fills -> the other group that consumes it."""
        found = {name: self.consumer(name) for name in self._queues}
        writes = (name for name in found if group in self.ends[name].writers)
        return {name: other for name in writes if (other := found[name]) not in (None, group)}

    def readers_for(self, group: str) -> dict[str, list[str]]:
        """Board that `group` writes -> other groups that read it."""
        return {
            name: [reader for reader in self.ends[name].readers if reader != group]
            for name in self._boards
            if self.writer(name) == group
        }

    def servers_for(self, group: str) -> dict[str, str]:
        """Stream of which `group` is a client -> the other group that serves it."""
        return {
            name: server
            for name in self._streams
            if group in self.ends[name].writers
            if (server := next(iter(self.ends[name].readers))) != group
        }

    def shares(self, queue: str) -> dict[str, int]:
        """Group -> its number of the queue's slots, at least one per producing node."""
        writers = self.ends[queue].writers
        each, rest = divmod(self._queues[queue].num_slots, max(1, sum(writers.values())))
        shares = {}
        for group, num_nodes in writers.items():
            extra = min(rest, num_nodes)
            rest -= extra
            shares[group] = max(each, 1) * num_nodes + (extra if each else 0)
        return shares

    def inbound(self, group: str) -> list[QueueSpec]:
        """Queues stored in `group`. With more producers than slots, each still has one slot."""
        found = []
        for name, spec in self._queues.items():
            if self.consumer(name) == group:
                num_slots = max(spec.num_slots, sum(self.shares(name).values()))
                found.append(replace(spec, num_slots=num_slots))
        return found

    def outbound(self, group: str) -> list[QueueSpec]:
        """Queues that `group` fills for other groups, with its share of their slots."""
        return [
            replace(spec, num_slots=self.shares(name)[group])
            for name, spec in self._queues.items()
            if group in self.ends[name].writers and self.consumer(name) != group
        ]

    def calls_at_a_time(self, group: str) -> int:
        """The most deliveries that may wait in `group`: one per slot."""
        return sum(spec.num_slots for spec in self.inbound(group))

    def links(self) -> dict[str, Link]:
        """The link of each stream: a socket where its ends are in different processes."""
        found: dict[str, Link] = {}
        for name, spec in self._streams.items():
            crosses = len(self.ends[name].groups) > 1
            found[name] = link_for(spec, ClusterLink if crosses else None)
        return found

    def uses(self, group: str, channel: str) -> bool:
        return group in self.ends[channel].groups


def _ends(channel: str, groups: Iterable[Group]) -> Ends:
    ends = Ends({}, {})
    for group in groups:
        for node in group.nodes:
            sides = {end.side for _, end in node.ends() if end.channel.name == channel}
            if sides.intersection(WRITING_SIDES):
                ends.writers[group.name] = ends.writers.get(group.name, 0) + 1
            if sides.intersection(READING_SIDES):
                ends.readers[group.name] = ends.readers.get(group.name, 0) + 1
    return ends
