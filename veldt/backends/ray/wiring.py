# SPDX-License-Identifier: Apache-2.0
"""The group of nodes at each end of each channel, where groups share no memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from veldt.backends.ray.channels import ClusterLink
from veldt.backends.shared_memory.streams import Link, link_for
from veldt.errors import ConfigurationError
from veldt.topology import (
    READING_SIDES,
    UPDATES_SUFFIX,
    WRITING_SIDES,
    Group,
    QueueSpec,
    Topology,
)
from veldt.types import Parameters


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
        names = (channel.spec.name for channel in topology.channels())
        self.ends = {name: _ends(name, self.groups.values()) for name in names}
        for shared in topology.shared:
            self._require_one_group(shared.spec.name, "meet in the memory of")
        for requests in topology.requests:
            self._require_one_group(requests.spec.name, "ask and answer in the memory of")
        for queue in topology.queues:
            self._require_one_consumer(queue.spec.name)
        self._boards = [board.spec.name for board in topology.boards]
        self._lasting = self._boards + [shared.spec.name for shared in topology.shared]
        self._streams = {stream.spec.name: stream.spec for stream in topology.streams}
        self._queues = {queue.spec.name: queue.spec for queue in topology.queues}

    def _require_one_group(self, name: str, what_they_do: str) -> None:
        groups = self.ends[name].groups
        if len(groups) > 1:
            raise ConfigurationError(
                f"{', '.join(groups)} {what_they_do} '{name}', but processes on Ray share no"
                " memory; use --backend process, or put these nodes into one process"
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

    def unwritten(self) -> list[str]:
        """Boards that no node writes: the driver writes them."""
        return [board for board in self._boards if not self.ends[board].writers]

    def owned(self, group: str) -> set[str]:
        """Boards and shared memory whose content `group` puts into checkpoints."""
        owners = {
            name: next(iter((*self.ends[name].writers, *self.ends[name].readers)), None)
            for name in self._lasting
            if name not in self.unwritten()
        }
        return {name for name, owner in owners.items() if owner == group}

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

    def has_dependents(self, group: str) -> bool:
        """Whether other groups send to `group`, call it, or read the weights it publishes."""
        served = [name for name in self._boards if self.writer(name) == group]
        served += [n for n in (*self._queues, *self._streams) if group in self.ends[n].readers]
        return any(self.ends[name].groups != [group] for name in served)

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


def initial_parameters(topology: Topology) -> dict[str, Parameters]:
    """First content of boards and lock-free weights. The version of the latter is the sum of their
    update counts."""
    found = {b.spec.name: Parameters(b.initial, b.version) for b in topology.boards}
    shared = {memory.spec.name: memory.initial for memory in topology.shared}
    for name, vector in shared.items():
        if name + UPDATES_SUFFIX in shared:
            found[name] = Parameters(vector, int(shared[name + UPDATES_SUFFIX].sum()))
    return found


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
