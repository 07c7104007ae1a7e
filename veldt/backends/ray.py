# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes on a Ray cluster.

Trajectories go from node to node through the object store and weights by reference; this driver
only starts the processes, watches them, and asks for their counters.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from veldt.backends import ray_cluster
from veldt.backends.base import NodeFailure, is_restartable
from veldt.backends.ray_cluster import ray
from veldt.backends.ray_host import START_SECONDS, Host, answers, place, reports
from veldt.backends.ray_messages import Assignment, Captured, Peers, Report
from veldt.backends.ray_wiring import Wiring, first_parameters
from veldt.backends.saving import CHANNELS, Parts, restore_counters, with_saved_channels
from veldt.backends.streams import Link
from veldt.backends.supervision import RestartPolicy
from veldt.checkpoint import CheckpointError, read_part
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot
from veldt.topology import Board, Group, Topology
from veldt.types import Parameters

_GRACE_SECONDS = 5.0
_CAPTURE_SECONDS = 60.0
_CAPTURE_TICK_SECONDS = 0.05
_IDLE_SECONDS = 0.1


class RayBackend:
    """Starts, watches, restarts and stops the processes of a topology on Ray."""

    name = "ray"

    def __init__(
        self, topology: Topology, seed: int, verify: bool = False, hang_seconds: float = 60.0
    ) -> None:
        self._seed, self._verify = seed, verify
        self._wiring = Wiring(topology)
        self._take_topology(topology)
        self._cluster: ray_cluster.Cluster | None = None
        self._links: dict[str, Link] = {}
        self._hosts: dict[str, Host] = {}
        self._telemetry = {node.name: bytes(TELEMETRY_BYTES) for node in topology.nodes}
        self._queue_fills = {queue.spec.name: 0.0 for queue in topology.queues}
        self._waiting: list[tuple[float, Host]] = []
        """Dead groups and when they may start again."""
        self._policies = {name: RestartPolicy() for name in self._wiring.groups}
        self._hang_seconds = hang_seconds
        self.notes: list[str] = []
        self._checkpoint: Path | None = None
        self._generation = 0
        self.run_dir: Path | None = None
        self.restarts = 0

    def _take_topology(self, topology: Topology) -> None:
        self._topology = topology
        self._known = first_parameters(topology)

    def start(self) -> None:
        self._cluster = ray_cluster.join()
        self._links = self._wiring.links(ray_cluster.is_one_machine())
        for group in self._wiring.groups.values():
            self._hosts[group.name] = self._place(group, self._generation)
        hosts = list(self._hosts.values())
        self._prepare(hosts)
        self._connect(hosts, set(self._hosts))
        for host in hosts:
            host.running = host.handle.run.remote()

    def _place(self, group: Group, incarnation: int) -> Host:
        num_calls = self._wiring.calls_at_a_time(group.name)
        return place(group, incarnation, list(self._wiring.groups.values()), num_calls)

    def _prepare(self, hosts: list[Host]) -> None:
        calls = [host.handle.prepare.remote(self._assignment(host)) for host in hosts]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=START_SECONDS)
        for host, call in zip(hosts, calls, strict=True):
            if call not in ready:
                raise NodeFailure(
                    host.group.name,
                    f"Ray did not start its process within {START_SECONDS:.0f} s; the cluster has"
                    f" {ray.available_resources()} to spare",
                )
            host.process_id = host.answer(call)

    def _assignment(self, host: Host) -> Assignment:
        name, uses, checkpoint = host.group.name, self._wiring.uses, self._checkpoint
        return Assignment(
            group=host.group,
            seed=self._seed,
            incarnation=host.incarnation,
            verify=self._verify,
            inbound=self._wiring.inbound(name),
            outbound=self._wiring.outbound(name),
            boards=[self._newest(b) for b in self._topology.boards if uses(name, b.spec.name)],
            shared=[s for s in self._topology.shared if uses(name, s.spec.name)],
            requests=self._wiring.requests_within(name),
            asking=self._wiring.asking(name),
            answering=self._wiring.answering(name),
            streams={s: link for s, link in self._links.items() if uses(name, s)},
            telemetry={node.name: self._telemetry[node.name] for node in host.group.nodes},
            answers_for=self._wiring.owned(name),
            run_dir=self.run_dir,
            parts={node.name: read_part(checkpoint, node.name) for node in host.group.nodes}
            if checkpoint is not None
            else {},
        )

    def _newest(self, board: Board) -> Board:
        known = self._known[board.spec.name]
        return replace(board, initial=known.vector, version=known.version)

    def _connect(self, hosts: list[Host], changed: set[str]) -> None:
        """Give `hosts` the handles of the groups in `changed` that they send to."""
        calls = []
        for host in hosts:
            peers = self._peers(host.group.name, changed)
            if peers.consumers or peers.readers or peers.servers:
                calls.append((host, host.handle.connect.remote(peers)))
        for host, call in calls:
            host.answer(call)

    def _peers(self, name: str, changed: set[str]) -> Peers:
        peers = Peers({}, {}, {})
        for queue in (queue.spec.name for queue in self._topology.queues):
            consumer = self._wiring.consumer(queue)
            if name in self._wiring.ends[queue].writers and consumer in changed - {name}:
                peers.consumers[queue] = self._hosts[consumer].handle
        for board in (board.spec.name for board in self._topology.boards):
            readers = changed.intersection(self._wiring.readers_elsewhere(board))
            if self._wiring.writer(board) == name and readers:
                peers.readers[board] = {reader: self._hosts[reader].handle for reader in readers}
        for requests in (spec.name for spec in self._wiring.asking(name)):
            server = self._wiring.server(requests)
            if server in changed:
                peers.servers[requests] = self._hosts[server].handle
        return peers

    def advance(self, seconds: float) -> None:
        running = {host.running: host for host in self._hosts.values()}
        if running:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=seconds)
        else:
            ended = []
            time.sleep(min(seconds, _IDLE_SECONDS))
        for call in ended:
            self._ended(running[call])
        for due in [entry for entry in self._waiting if entry[0] <= time.monotonic()]:
            self._waiting.remove(due)
            self._restart(due[1])
        self._exchange_reports()

    def _ended(self, host: Host) -> None:
        try:
            outcome = ray.get(host.running)
        except ray.exceptions.RayActorError as error:
            may = is_restartable(host.group) and not self._holds_memory(host.group)
            delay = self._policies[host.group.name].next_delay() if may else None
            if delay is None:
                raise host.died(error) from error
            self.notes.append(f"{host.died(error)} and is restarted")
            ray.kill(host.handle)  # it may be out of reach rather than dead
            del self._hosts[host.group.name]
            self._waiting.append((time.monotonic() + delay, host))
        except ray.exceptions.RayError as error:
            raise host.died(error) from error
        else:
            raise NodeFailure(*(outcome or (host.group.name, "its roles ended by themselves")))

    def _holds_memory(self, group: Group) -> bool:
        """Whether what the group knew died with its process, instead of lying in checkpoints."""
        shared = (memory.spec.name for memory in self._topology.shared)
        return any(self._wiring.uses(group.name, name) for name in shared)

    def _restart(self, dead: Host) -> None:
        name = dead.group.name
        for board in (board.spec.name for board in self._topology.boards):
            if self._wiring.uses(name, board):
                self.parameters(board)  # so that the successor begins with the newest there is
        successor = self._place(dead.group, dead.incarnation + 1)
        self._prepare([successor])
        self._hosts[name] = successor
        self._connect([successor], set(self._hosts))
        self._connect([h for h in self._hosts.values() if h is not successor], {name})
        successor.running = successor.handle.run.remote()
        self.restarts += 1

    def _exchange_reports(self) -> None:
        hosts = list(self._hosts.values())
        self._take(reports(hosts))
        for host in hosts:
            host.ask_for_report()
            if host.silent_seconds() > self._hang_seconds:
                self.notes.append(host.kill_silent())  # it then ends like any dead process

    def _take(self, found: list[Report]) -> None:
        for report in found:
            self._telemetry.update(report.telemetry)
            self._queue_fills.update(report.queue_fills)

    def snapshots(self) -> list[NodeSnapshot]:
        """As of the last report, which is a fraction of a second old."""
        blocks = (self._telemetry[node.name] for node in self._topology.nodes)
        return [NodeSnapshot.from_bytes(block) for block in blocks]

    def queue_fills(self) -> dict[str, float]:
        return dict(self._queue_fills)

    def parameters(self, board: str) -> Parameters:
        """The writer's newest weights; where it is gone, the newest that a reader still has."""
        ends = self._wiring.ends[board]
        for groups in (ends.writers, ends.readers):
            hosts = [self._hosts[name] for name in groups if name in self._hosts]
            found = answers([host.handle.parameters.remote(board) for host in hosts])
            if found:
                newest: Parameters = max(found, key=lambda parameters: parameters.version)
                self._known[board] = Parameters(np.array(newest.vector), newest.version)
                break
        return self._known[board]

    def capture(self) -> Parts:
        """Ask every group for its part, while the run goes on; a dead one's successor is asked."""
        asked: dict[str, tuple[Host, Any]] = {}
        found: dict[str, Captured] = {}
        deadline = time.monotonic() + _CAPTURE_SECONDS
        while missing := [name for name in self._wiring.groups if name not in found]:
            if time.monotonic() > deadline:
                raise CheckpointError(f"{', '.join(missing)} did not hand over their state in time")
            for name in missing:
                host = self._hosts.get(name)
                if host is not None and (name not in asked or asked[name][0] is not host):
                    asked[name] = (host, host.handle.capture.remote())
            self.advance(_CAPTURE_TICK_SECONDS)
            for name in asked.keys() - found.keys():
                for captured in answers([asked[name][1]], seconds=0):
                    found[name] = captured
        return _joined(list(found.values()))

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
        if self._hosts and ray.is_initialized():
            self._stop_hosts(list(self._hosts.values()))
        self._hosts = {}
        for link in self._links.values():
            link.close()
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None

    def _stop_hosts(self, hosts: list[Host]) -> None:
        for host in hosts:
            host.handle.stop.remote()
        running = [host.running for host in hosts if host.running is not None]
        if running:
            ray.wait(running, num_returns=len(running), timeout=_GRACE_SECONDS)
        for host in hosts:
            host.report = host.handle.report.remote()
        self._take(reports(hosts, _GRACE_SECONDS))
        for name in self._known:
            self.parameters(name)
        # Senders first, so that nobody is left with a call that cannot be answered.
        for host in sorted(hosts, key=lambda host: not self._wiring.outbound(host.group.name)):
            ray.kill(host.handle)


def _joined(captured: list[Captured]) -> Parts:
    parts: Parts = {CHANNELS: {}}
    for group in captured:
        parts |= {name: ray.get(part) for name, part in group.parts.items()}
        parts[CHANNELS] |= group.channels
    return parts
