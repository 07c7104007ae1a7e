# SPDX-License-Identifier: Apache-2.0
"""The channels of a run whose processes are all on this machine: memory that they share, as on the
process backend, instead of messages through Ray.

Ray starts and watches the processes; the descriptors of memory, pipes and doorbells reach them over
a socket.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from veldt.backends.base import doorbells_of
from veldt.backends.shared_memory.fabric import OverFabric, SentFabric, build_fabric, descriptors_of
from veldt.backends.supervision import Recovery
from veldt.resources import raise_descriptor_limit, require_descriptors
from veldt.topology import Group, Topology

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class SharedPart:
    """What one process is sent. Ray may repeat the call that brings it, so whoever receives it
    opens it once."""

    fabric: SentFabric
    holder: int
    """The number of the process in the holders of slots."""


class SharedChannels(OverFabric):
    """The driver's side: made before the processes start, and closed when they have ended."""

    def __init__(self, topology: Topology, groups: list[Group], verify: bool) -> None:
        raise_descriptor_limit()
        require_descriptors(descriptors_of(topology))
        self._topology = topology
        self._fabric = build_fabric(topology, between_processes=True, verify=verify)
        for group in groups:
            self._fabric.doorbells.update(doorbells_of(group))
        self._holders = {group.name: number for number, group in enumerate(groups, start=1)}
        self._recovery, self._next_look = Recovery(self._fabric), 0.0

    def part_for(self, group: Group) -> SharedPart:
        part = SentFabric.of(self._fabric.part_for(group.nodes))
        return SharedPart(part, self._holders[group.name])

    def died(self, group: Group) -> None:
        """Take back what a dead process held, before its successor runs."""
        self._recovery.died(self._holders[group.name])

    def look(self) -> None:
        """Now and then: what was lost in the moment of a death."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._recovery.look()

    def close(self) -> None:
        self._fabric.close()
