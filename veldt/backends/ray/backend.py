# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes on a Ray cluster.

Trajectories go from node to node through the object store and weights by reference. Where all
processes are on this machine, they share memory as on the process backend instead. The driver only
starts the processes, watches them, and asks for their counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

from veldt.backends.base import DEFAULTS, BackendOptions, wakers_of
from veldt.backends.checkpoint_parts import (
    CHANNELS,
    Parts,
    part_of_absent,
    restore_counters,
    with_saved_channels,
)
from veldt.backends.ray.cluster import Cluster, Watch, is_one_machine, warning_about_token
from veldt.backends.ray.node import Assignment, Captured, Report, SharedPart
from veldt.backends.ray.supervisor import Host, Supervisor, answers, reports
from veldt.backends.ray.wiring import Wiring
from veldt.backends.shared_memory.fabric import (
    Link,
    OverFabric,
    SentFabric,
    build_fabric,
    descriptors_of,
)
from veldt.backends.supervision import Recovery, heartbeats
from veldt.checkpoints.store import CheckpointError, read_part
from veldt.resources import raise_descriptor_limit, require_descriptors
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot, Spans
from veldt.topology import Board, Group, Topology
from veldt.types import Parameters

_REPORT_SECONDS = 5.0
_CAPTURE_SECONDS = 60.0
_RECOVERY_SECONDS = 0.5


class RayBackend:
    """Starts, watches, restarts and stops the processes of a topology on Ray."""

    def __init__(
        self,
        topology: Topology,
        seed: int,
        options: BackendOptions = DEFAULTS,
        share_memory: bool = True,
    ) -> None:
        """With `share_memory` the processes share memory if all of them are on one machine."""
        self._may_share = share_memory
        self._seed, self._options = seed, options
        self._wiring = Wiring(topology)
        self._take_topology(topology)
        self._cluster: Cluster | None = None
        self._watch: Watch | None = None
        self._links: dict[str, Link] = {}
        self._shared: SharedChannels | None = None
        """Used where all processes are on this machine."""
        self._telemetry = {node.name: bytes(TELEMETRY_BYTES) for node in topology.nodes}
        self._queue_fills = {queue.spec.name: 0.0 for queue in topology.queues}
        self._supervisor = supervisor = Supervisor(self._wiring, self)
        self._hosts, self._policies = supervisor.hosts, supervisor.policies
        self.notes, self.restarted = supervisor.notes, supervisor.restarted
        self._checkpoint: Path | None = None
        self._generation = 0
        self.run_dir: Path | None = None

    @property
    def restarts(self) -> int:
        return self.restarted.total()

    def _take_topology(self, topology: Topology) -> None:
        self._topology = topology
        self._known = {b.spec.name: Parameters(b.initial, b.version) for b in topology.boards}

    def start(self) -> None:
        self._cluster = Cluster()
        self._cluster.join()
        if warning := warning_about_token():
            self.notes.append(warning)
        if self._may_share and is_one_machine():
            groups = list(self._wiring.groups.values())
            boards = [self._newest(board) for board in self._topology.boards]
            newest = replace(self._topology, boards=boards)
            self._shared = SharedChannels(newest, groups, self._options.verify)
        else:
            self._links = self._wiring.links()
        self._watch = Watch()
        self._supervisor.start(self._generation)

    def assignment(self, host: Host) -> Assignment:
        """What a process needs before it runs."""
        for board in self._wiring.readers_for(host.group.name) if host.incarnation else ():
            self.parameters(board)  # its writer continues with the newest that any reader has
        name, uses, checkpoint = host.group.name, self._wiring.uses, self._checkpoint
        return Assignment(
            group=host.group,
            seed=self._seed,
            incarnation=host.incarnation,
            verify=self._options.verify,
            inbound=self._wiring.inbound(name),
            outbound=self._wiring.outbound(name),
            boards=[self._newest(b) for b in self._topology.boards if uses(name, b.spec.name)],
            streams={s: link for s, link in self._links.items() if uses(name, s)},
            telemetry={node.name: self._telemetry[node.name] for node in host.group.nodes},
            timeline_seconds=self._options.timeline_seconds,
            run_dir=self.run_dir,
            memory=self._shared.part_for(host.group) if self._shared is not None else None,
            parts={node.name: read_part(checkpoint, node.name) for node in host.group.nodes}
            if checkpoint is not None
            else {},
        )

    def _newest(self, board: Board) -> Board:
        known = self._known[board.spec.name]
        return replace(board, initial=known.vector, version=known.version)

    def newest_for(self, group: Group) -> dict[str, Parameters]:
        """The newest weights that `group` reads, by board; empty where it shares memory."""
        if self._shared is not None:
            return {}
        boards = (board.spec.name for board in self._topology.boards)
        read = (board for board in boards if group.name in self._wiring.ends[board].readers)
        return {b: self.parameters(b) for b in read if self._wiring.writer(b) != group.name}

    def lost(self, group: Group) -> None:
        if self._shared is not None:
            self._shared.died(group)

    def advance(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.check(self._checkpoint)
        self._supervisor.watch(seconds)
        self._exchange_reports()
        if self._shared is not None:
            nodes = (node for host in self._hosts.values() for node in host.group.nodes)
            blocks = (NodeSnapshot.from_bytes(self._telemetry[node.name]) for node in nodes)
            self._shared.recover_if_due(heartbeats(blocks))

    def _exchange_reports(self) -> None:
        hosts = list(self._hosts.values())
        self._take(reports(hosts))
        for host in hosts:
            host.ask_for_report()
            if host.silent_seconds() > self._options.hang_seconds:
                self.notes.append(host.kill_silent())  # then replaced like any dead process

    def _take(self, found: list[Report]) -> None:
        for report in found:
            self._telemetry.update(report.telemetry)
            self._queue_fills.update(report.queue_fills)

    def pause(self) -> None:
        pass

    def snapshots(self) -> list[NodeSnapshot]:
        """From the last report, which is a fraction of a second old."""
        blocks = (self._telemetry[node.name] for node in self._topology.nodes)
        return [NodeSnapshot.from_bytes(block) for block in blocks]

    def take_spans(self) -> dict[str, Spans]:
        """Of the processes that answer in time."""
        calls = [host.handle.take_spans.remote() for host in self._hosts.values()]
        return {name: spans for found in answers(calls) for name, spans in found.items()}

    def queue_fills(self) -> dict[str, float]:
        return dict(self._queue_fills) if self._shared is None else self._shared.queue_fills()

    def parameters(self, board: str) -> Parameters:
        """The writer's newest weights; without a writer, the newest that a reader still has."""
        if self._shared is not None:
            self._known[board] = self._shared.parameters(board)
            return self._known[board]
        if self._watch is not None and self._watch.is_lost:
            return self._known[board]
        ends = self._wiring.ends[board]
        for groups in (ends.writers, ends.readers):
            hosts = [self._hosts[name] for name in groups if name in self._hosts]
            found = answers([host.handle.parameters.remote(board) for host in hosts])
            if found:
                newest: Parameters = max(found, key=lambda parameters: parameters.version)
                self._known[board] = Parameters(np.array(newest.vector), newest.version)
                break
        return self._known[board]

    def capture(self, wait_seconds: float) -> RayCapture:
        groups = set(self._wiring.groups)
        return RayCapture(self._supervisor, groups, self._parts_of_absent)

    def _parts_of_absent(self, names: set[str]) -> Parts:
        nodes = (node.name for name in names for node in self._wiring.groups[name].nodes)
        saved = self._checkpoint
        return {
            name: part_of_absent(self._telemetry[name], read_part(saved, name) if saved else {})
            for name in nodes
        }

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Before `start`, the state to begin from; later, the state that restarted groups load."""
        self._checkpoint = checkpoint
        if self._hosts:
            return
        self._generation = generation
        self._take_topology(with_saved_channels(self._topology, read_part(checkpoint, CHANNELS)))
        for node in self._topology.nodes:
            block = bytearray(TELEMETRY_BYTES)
            restore_counters(memoryview(block), read_part(checkpoint, node.name))
            self._telemetry[node.name] = bytes(block)

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id on its machine."""
        return {name: host.process_id for name, host in self._hosts.items()}

    def stop(self, wait_seconds: float = 5.0) -> None:
        is_lost = self._watch is not None and self._watch.is_lost
        if self._cluster is not None and not is_lost and ray.is_initialized():
            begun = [host for host in self._hosts.values() if host.running is not None]
            # A signal may have come before the others ran.
            self._stop_hosts(begun, wait_seconds)
            self._supervisor.close()
        if self._shared is not None:
            for name in self._known:
                self.parameters(name)  # the run asks for them after `stop`, too
            self._shared.close()
            self._shared = None
        if self._cluster is not None:
            self._cluster.leave(is_lost)
            self._cluster = None

    def _stop_hosts(self, hosts: list[Host], wait_seconds: float) -> None:
        for host in hosts:
            host.handle.stop.remote()
        if hosts:
            running = [host.running for host in hosts]
            ray.wait(running, num_returns=len(running), timeout=wait_seconds)
        for host in hosts:
            host.report = host.handle.report.remote()
        self._take(reports(hosts, _REPORT_SECONDS))
        for name in self._known:
            self.parameters(name)


class RayCapture:
    """Asks every group for its part of a checkpoint while the run continues.

    Where a process is being replaced, its successor is asked. Actors that the cluster has no room
    for keep their part of the last checkpoint."""

    def __init__(
        self,
        supervisor: Supervisor,
        groups: set[str],
        parts_of_absent: Callable[[set[str]], Parts],
    ) -> None:
        self._supervisor, self._groups = supervisor, groups
        self._parts_of_absent = parts_of_absent
        self._asked: dict[str, tuple[Host, Any]] = {}
        self._found: dict[str, Captured] = {}
        self._deadline = time.monotonic() + _CAPTURE_SECONDS

    def ready(self) -> bool:
        for name in self._asked.keys() - self._found.keys():
            for captured in answers([self._asked[name][1]], seconds=0):
                self._found[name] = captured
        missing = self._groups - self._found.keys() - self._supervisor.absent()
        if missing and time.monotonic() > self._deadline:
            raise CheckpointError(
                f"{', '.join(sorted(missing))} did not hand over their state in"
                f" {_CAPTURE_SECONDS:.0f} s"
            )
        for name in missing:
            host = self._supervisor.hosts.get(name)
            if host is not None and (name not in self._asked or self._asked[name][0] is not host):
                self._asked[name] = (host, host.handle.capture.remote())
        return not missing

    def parts(self) -> Parts:
        parts: Parts = {CHANNELS: {}}
        for group in self._found.values():
            parts |= {name: ray.get(part) for name, part in group.parts.items()}
            parts[CHANNELS] |= group.channels
        return self._parts_of_absent(self._groups - self._found.keys()) | parts


class SharedChannels(OverFabric):
    """The channels of processes that share memory; their descriptors are sent over a socket."""

    def __init__(self, topology: Topology, groups: list[Group], verify: bool) -> None:
        raise_descriptor_limit()
        require_descriptors(descriptors_of(topology))
        self._topology = topology
        self._fabric = build_fabric(topology, between_processes=True, verify=verify)
        for group in groups:
            self._fabric.wakers.update(wakers_of(group))
        self._holders = {group.name: number for number, group in enumerate(groups, start=1)}
        self._recovery, self._next_recovery = Recovery(self._fabric), 0.0

    def part_for(self, group: Group) -> SharedPart:
        part = SentFabric.of(self._fabric.part_for(group.nodes))
        return SharedPart(part, self._holders[group.name])

    def died(self, group: Group) -> None:
        """Free what a dead process held, before its successor runs."""
        self._recovery.died(self._holders[group.name])

    def recover_if_due(self, beats: list[float]) -> None:
        """Free slots that a process held when it died between two atomic operations."""
        if time.monotonic() >= self._next_recovery:
            self._next_recovery = time.monotonic() + _RECOVERY_SECONDS
            self._recovery.check(beats)

    def close(self) -> None:
        self._fabric.close()
