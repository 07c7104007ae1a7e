# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes on a Ray cluster.

Trajectories go from node to node through the object store and weights by reference; this driver
only starts the processes, watches them, and asks for their counters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from veldt.backends.background import Background
from veldt.backends.base import DEFAULTS, BackendOptions, is_restartable
from veldt.backends.checkpoint_parts import (
    CHANNELS,
    Parts,
    part_of_absent,
    restore_counters,
    with_saved_channels,
)
from veldt.backends.elastic import ActorCounts, Elastic
from veldt.backends.ray import cluster as ray_cluster
from veldt.backends.ray.capturing import RayCapture
from veldt.backends.ray.cluster import ray
from veldt.backends.ray.head import Head
from veldt.backends.ray.host import Host, answers, reports
from veldt.backends.ray.messages import Assignment, Report
from veldt.backends.ray.shared import SharedChannels
from veldt.backends.ray.supervisor import Supervisor
from veldt.backends.ray.wiring import Wiring, initial_parameters
from veldt.backends.shared_memory.fabric import Link
from veldt.checkpoints.store import read_part
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot, Spans
from veldt.topology import Board, Group, Topology
from veldt.types import Parameters

_GRACE_SECONDS = 5.0


class RayBackend:
    """Starts, watches, restarts and stops the processes of a topology on Ray."""

    def __init__(
        self,
        topology: Topology,
        seed: int,
        options: BackendOptions = DEFAULTS,
        elastic: Elastic | None = None,
        share_memory: bool = True,
    ) -> None:
        """`elastic`: groups that may come and go. `share_memory`: where all processes are on one
        machine. Without it they send messages there, too."""
        self._may_share = share_memory
        self._seed, self._options = seed, options
        self._wiring = Wiring(topology)
        self._take_topology(topology)
        self._cluster: ray_cluster.Cluster | None = None
        self._head: Head | None = None
        self._links: dict[str, Link] = {}
        self._shared: SharedChannels | None = None
        """Where all processes are on this machine."""
        self._telemetry = {node.name: bytes(TELEMETRY_BYTES) for node in topology.nodes}
        self._queue_fills = {queue.spec.name: 0.0 for queue in topology.queues}
        self._supervisor = Supervisor(self._wiring, self, elastic)
        self._elastic = elastic
        self._policies = self._supervisor.policies
        self._checkpoint: Path | None = None
        self._generation = 0
        self.run_dir: Path | None = None

    @property
    def _hosts(self) -> dict[str, Host]:
        return self._supervisor.hosts

    @property
    def restarted(self) -> Counter[str]:
        return self._supervisor.restarted

    @property
    def actors(self) -> ActorCounts | None:
        return None if self._elastic is None else self._supervisor.members.counts

    @property
    def restarts(self) -> int:
        return self.restarted.total()

    @property
    def notes(self) -> list[str]:
        return self._supervisor.notes

    def _take_topology(self, topology: Topology) -> None:
        self._topology = topology
        self._known = initial_parameters(topology)

    def start(self) -> None:
        self._cluster = ray_cluster.join()
        if warning := ray_cluster.warning_about_token():
            self.notes.append(warning)
        is_one_machine = ray_cluster.is_one_machine()
        if is_one_machine and self._elastic is not None:
            ray_cluster.require_room(len(self._wiring.groups), self._elastic)
        if self._may_share and is_one_machine:
            groups = list(self._wiring.groups.values())
            boards = [self._newest(board) for board in self._topology.boards]
            newest = replace(self._topology, boards=boards)
            self._shared = SharedChannels(newest, groups, self._options.verify)
        else:
            self._links = self._wiring.links()
        self._head = Head(ray.get_runtime_context().gcs_address)
        self._supervisor.start(self._generation)

    def assignment(self, host: Host) -> Assignment:
        """What a process is told before it runs."""
        for board in self._wiring.readers_for(host.group.name) if host.incarnation else ():
            self.parameters(board)  # its writer goes on with the newest that any reader has
        name, uses, checkpoint = host.group.name, self._wiring.uses, self._checkpoint
        return Assignment(
            group=host.group,
            seed=self._seed,
            incarnation=host.incarnation,
            verify=self._options.verify,
            inbound=self._wiring.inbound(name),
            outbound=self._wiring.outbound(name),
            boards=[self._newest(b) for b in self._topology.boards if uses(name, b.spec.name)],
            shared=[s for s in self._topology.shared if uses(name, s.spec.name)],
            requests=[r.spec for r in self._topology.requests if uses(name, r.spec.name)],
            streams={s: link for s, link in self._links.items() if uses(name, s)},
            telemetry={node.name: self._telemetry[node.name] for node in host.group.nodes},
            timeline_seconds=self._options.timeline_seconds,
            saves=self._wiring.owned(name),
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
        """The newest weights that `group` reads, by board; none where it reads them itself."""
        if self._shared is not None:
            return {}
        boards = (board.spec.name for board in self._topology.boards)
        read = (board for board in boards if group.name in self._wiring.ends[board].readers)
        return {b: self.parameters(b) for b in read if self._wiring.writer(b) != group.name}

    def may_restart(self, group: Group) -> bool:
        """Not if what the group knew died with its process, instead of lying in checkpoints."""
        shared = (memory.spec.name for memory in self._topology.shared)
        holds_memory = any(self._wiring.uses(group.name, name) for name in shared)
        return is_restartable(group) and not holds_memory

    def lost(self, group: Group) -> None:
        if self._shared is not None:
            self._shared.died(group)

    def advance(self, seconds: float) -> None:
        if self._head is not None:
            self._head.check(self._checkpoint)
        self._supervisor.watch(seconds)
        self._exchange_reports()
        if self._shared is not None:
            self._shared.look()

    def _exchange_reports(self) -> None:
        hosts = list(self._hosts.values())
        self._take(reports(hosts))
        for host in hosts:
            host.ask_for_report()
            if host.silent_seconds() > self._options.hang_seconds:
                self.notes.append(host.kill_silent())  # it then ends like any dead process

    def _take(self, found: list[Report]) -> None:
        for report in found:
            self._telemetry.update(report.telemetry)
            self._queue_fills.update(report.queue_fills)

    def pause(self) -> None:
        pass

    def snapshots(self) -> list[NodeSnapshot]:
        """As of the last report, which is a fraction of a second old."""
        blocks = (self._telemetry[node.name] for node in self._topology.nodes)
        return [NodeSnapshot.from_bytes(block) for block in blocks]

    def take_spans(self) -> dict[str, Spans]:
        """Of the processes that answer in time."""
        calls = [host.handle.take_spans.remote() for host in self._hosts.values()]
        return {name: spans for found in answers(calls) for name, spans in found.items()}

    def queue_fills(self) -> dict[str, float]:
        return dict(self._queue_fills) if self._shared is None else self._shared.queue_fills()

    def parameters(self, board: str) -> Parameters:
        """The writer's newest weights; where it is gone, the newest that a reader still has."""
        if self._shared is not None:
            self._known[board] = self._shared.parameters(board)
            return self._known[board]
        if self._head is not None and self._head.is_lost:
            return self._known[board]
        ends = self._wiring.ends[board]
        if not ends.writers:
            return self._known[board]  # this process is its writer
        for groups in (ends.writers, ends.readers):
            hosts = [self._hosts[name] for name in groups if name in self._hosts]
            found = answers([host.handle.parameters.remote(board) for host in hosts])
            if found:
                newest: Parameters = max(found, key=lambda parameters: parameters.version)
                self._known[board] = Parameters(np.array(newest.vector), newest.version)
                break
        return self._known[board]

    def publish(self, board: str, parameters: Parameters) -> None:
        """Who is not there now is told when it is."""
        self._known[board] = parameters
        if self._shared is not None:
            self._shared.publish(board, parameters)
            return
        for name in self._wiring.ends[board].readers:
            if name in self._hosts:
                accept = self._hosts[name].handle.accept
                accept.remote(board, parameters.version, parameters.vector)

    def capture(self, patience_seconds: float) -> RayCapture:
        groups = set(self._wiring.groups)
        own = {board: self._known[board] for board in self._wiring.unwritten()}
        return RayCapture(self._supervisor, groups, self._parts_of_absent, own)

    def _parts_of_absent(self, names: set[str]) -> Parts:
        nodes = (node.name for name in names for node in self._wiring.groups[name].nodes)
        saved = self._checkpoint
        return {
            name: part_of_absent(self._telemetry[name], read_part(saved, name) if saved else {})
            for name in nodes
        }

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Before the start: begin from here. During the run: restarted groups begin from here."""
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
        """Group name -> process id on its machine, for fault tests and profilers."""
        return {name: host.process_id for name, host in self._hosts.items()}

    def stop(self) -> None:
        is_lost = self._head is not None and self._head.is_lost
        if self._cluster is not None and not is_lost and ray.is_initialized():
            begun = [host for host in self._hosts.values() if host.running is not None]
            self._stop_hosts(begun)  # a signal may have come before the others were told anything
            self._supervisor.close()
        for link in self._links.values():
            link.close()
        if self._shared is not None:
            for name in self._known:
                self.parameters(name)  # they are asked for after the end, too
            self._shared.close()
            self._shared = None
        if self._cluster is not None:
            leaving = Background(self._cluster.leave)
            leaving.done(_GRACE_SECONDS if is_lost else None)  # a dead head answers nobody
            self._cluster = None

    def _stop_hosts(self, hosts: list[Host]) -> None:
        for host in hosts:
            host.handle.stop.remote()
        if hosts:
            running = [host.running for host in hosts]
            ray.wait(running, num_returns=len(running), timeout=_GRACE_SECONDS)
        for host in hosts:
            host.report = host.handle.report.remote()
        self._take(reports(hosts, _GRACE_SECONDS))
        for name in self._known:
            self.parameters(name)
