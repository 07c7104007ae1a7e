# SPDX-License-Identifier: Apache-2.0
"""Which group of nodes is at which end of each channel, where groups share no memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from veldt.backends.ray_streams import ClusterLink
from veldt.backends.streams import Link, LocalLink, unix_link
from veldt.errors import ConfigurationError
from veldt.topology import READING_SIDES, WRITING_SIDES, Channel, Group, QueueSpec, Topology


@dataclass(frozen=True)
class Ends:
    """Group name -> number of its nodes, at either end of one channel."""

    writers: dict[str, int]
    readers: dict[str, int]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys((*self.writers, *self.readers)))


class Wiring:
    """The ends of every channel by name; refuses what needs shared memory."""

    def __init__(self, topology: Topology) -> None:
        self.groups = {group.name: group for group in topology.groups()}
        specs: list[Channel] = [queue.spec for queue in topology.queues]
        specs += [board.spec for board in topology.boards]
        specs += [stream.spec for stream in topology.streams]
        needs_memory: list[Channel] = [shared.spec for shared in topology.shared]
        needs_memory += [requests.spec for requests in topology.requests]
        self.ends = {c.name: _ends(c, self.groups.values()) for c in specs + needs_memory}
        for channel in needs_memory:
            self._require_one_group(channel.name)
        for queue in topology.queues:
            self._require_one_consumer(queue.spec.name)
        self._streams = {stream.spec.name: stream.spec for stream in topology.streams}
        self._queues = {queue.spec.name: queue.spec for queue in topology.queues}

    def _require_one_group(self, name: str) -> None:
        groups = self.ends[name].groups
        if len(groups) > 1:
            raise ConfigurationError(
                f"{', '.join(groups)} meet in the memory of '{name}', but processes on Ray share no"
                " memory; use --backend process, or put these nodes into one process"
            )

    def _require_one_consumer(self, name: str) -> None:
        consumers = list(self.ends[name].readers)
        if len(consumers) > 1:
            raise ConfigurationError(
                f"the queue '{name}' is consumed by {', '.join(consumers)}, but on Ray it lives in"
                " the process of one consumer; use --backend process, or put them into one process"
            )

    def consumer(self, queue: str) -> str | None:
        return next(iter(self.ends[queue].readers), None)

    def writer(self, board: str) -> str | None:
        return next(iter(self.ends[board].writers), None)

    def owner(self, channel: str) -> str | None:
        """The group that knows best what lies there."""
        ends = self.ends[channel]
        return next(iter((*ends.writers, *ends.readers)), None)

    def readers_elsewhere(self, board: str) -> list[str]:
        writer = self.writer(board)
        return [group for group in self.ends[board].readers if group != writer]

    def shares(self, queue: str) -> dict[str, int]:
        """Group -> how many of the queue's slots it may hold; at least one per producing node."""
        writers = self.ends[queue].writers
        each, rest = divmod(self._queues[queue].num_slots, max(1, sum(writers.values())))
        shares = {}
        for group, num_nodes in writers.items():
            extra = min(rest, num_nodes)
            rest -= extra
            shares[group] = max(each, 1) * num_nodes + (extra if each else 0)
        return shares

    def inbound(self, group: str) -> list[QueueSpec]:
        """Queues that live in `group`. With more producers than slots, each still has one."""
        found = []
        for name, spec in self._queues.items():
            if self.consumer(name) == group:
                num_slots = max(spec.num_slots, sum(self.shares(name).values()))
                found.append(replace(spec, num_slots=num_slots))
        return found

    def outbound(self, group: str) -> list[QueueSpec]:
        """Queues that `group` fills but that live elsewhere, with its share of their slots."""
        return [
            replace(spec, num_slots=self.shares(name)[group])
            for name, spec in self._queues.items()
            if group in self.ends[name].writers and self.consumer(name) != group
        ]

    def links(self, one_machine: bool) -> dict[str, Link]:
        """What carries each stream: a socket where its ends are in different processes."""
        found: dict[str, Link] = {}
        for name, spec in self._streams.items():
            if len(self.ends[name].groups) == 1:
                found[name] = LocalLink(spec)
            elif one_machine:
                found[name] = unix_link(spec)
            else:
                found[name] = ClusterLink(spec)
        return found

    def uses(self, group: str, channel: str) -> bool:
        return group in self.ends[channel].groups


def _ends(channel: Channel, groups: Iterable[Group]) -> Ends:
    ends = Ends({}, {})
    for group in groups:
        for node in group.nodes:
            sides = {end.side for _, end in node.ends() if end.channel.name == channel.name}
            if sides.intersection(WRITING_SIDES):
                ends.writers[group.name] = ends.writers.get(group.name, 0) + 1
            if sides.intersection(READING_SIDES):
                ends.readers[group.name] = ends.readers.get(group.name, 0) + 1
    return ends
