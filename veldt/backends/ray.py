# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes on a Ray cluster.

Trajectories go from node to node through the object store and weights by reference; this driver
only starts the processes, watches them, and asks for their counters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from veldt.backends import ray_cluster
from veldt.backends.base import NodeFailure, RestartBudget, is_restartable
from veldt.backends.ray_cluster import ray
from veldt.backends.ray_node import Assignment, NodeHost, Peers, Report
from veldt.backends.ray_wiring import Wiring
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot
from veldt.topology import Group, Topology
from veldt.types import Parameters

_START_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_REPORT_INTERVAL_SECONDS = 0.1
_SPARE_CALLS = 64  # beside deliveries, a process answers few calls at a time


@dataclass
class _Host:
    """One process group: Ray's handle of it and the calls that are under way."""

    group: Group
    incarnation: int
    handle: Any
    process_id: int = 0
    running: Any = None
    """The call that returns when the group's roles end."""
    report: Any = None
    reported_at: float = field(default=0.0)


class RayBackend:
    """Starts, watches, restarts and stops the processes of a topology on Ray."""

    name = "ray"

    def __init__(self, topology: Topology, seed: int, verify: bool = False) -> None:
        self._topology, self._seed, self._verify = topology, seed, verify
        self._wiring = Wiring(topology)
        self._queues = {queue.spec.name: queue for queue in topology.queues}
        self._boards = {board.spec.name: board for board in topology.boards}
        self._known = {b.spec.name: Parameters(b.initial, b.version) for b in topology.boards}
        self._known |= {s.spec.name: Parameters(s.initial, 0) for s in topology.shared}
        self._cluster: ray_cluster.Cluster | None = None
        self._hosts: dict[str, _Host] = {}
        self._telemetry = {node.name: bytes(TELEMETRY_BYTES) for node in topology.nodes}
        self._queue_fills = dict.fromkeys(self._queues, 0.0)
        self._budget = RestartBudget(len(self._wiring.groups))
        self.restarts = 0

    def start(self) -> None:
        self._cluster = ray_cluster.join()
        for group in self._wiring.groups.values():
            self._hosts[group.name] = self._place(group, incarnation=0)
        self._prepare(list(self._hosts.values()))
        self._connect(list(self._hosts.values()), set(self._hosts))
        for host in self._hosts.values():
            host.running = host.handle.run.remote()

    def _place(self, group: Group, incarnation: int) -> _Host:
        slots = sum(spec.num_slots for spec in self._inbound(group.name))
        resources = ray.cluster_resources()
        options = {
            "num_cpus": _fraction(resources.get("CPU", 1.0), len(self._wiring.groups)),
            "max_concurrency": 2 * slots + _SPARE_CALLS,
            "max_restarts": 0,  # restarts are ours: a successor has to be connected
        }
        wanting = sum(_wants_gpu(other) for other in self._wiring.groups.values())
        if _wants_gpu(group):
            options["num_gpus"] = _fraction(resources.get("GPU", 1.0), wanting)
        return _Host(group, incarnation, ray.remote(NodeHost).options(**options).remote())

    def _prepare(self, hosts: list[_Host]) -> None:
        calls = [host.handle.prepare.remote(self._assignment(host)) for host in hosts]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_START_SECONDS)
        for host, call in zip(hosts, calls, strict=True):
            if call not in ready:
                raise NodeFailure(
                    host.group.name,
                    f"Ray did not start its process within {_START_SECONDS:.0f} s; the cluster has"
                    f" {ray.available_resources()} to spare",
                )
            host.process_id = _answer(host, call)

    def _assignment(self, host: _Host) -> Assignment:
        name = host.group.name
        return Assignment(
            group=host.group,
            seed=self._seed,
            incarnation=host.incarnation,
            verify=self._verify,
            inbound=self._inbound(name),
            outbound=[
                replace(queue.spec, num_slots=self._wiring.shares(queue.spec.name)[name])
                for queue in self._topology.queues
                if name in self._wiring.ends[queue.spec.name].writers
                and self._wiring.consumer(queue.spec.name) != name
            ],
            boards=[
                replace(board, initial=self._known[b].vector, version=self._known[b].version)
                for b, board in self._boards.items()
                if self._wiring.uses(name, b)
            ],
            shared=[s for s in self._topology.shared if self._wiring.uses(name, s.spec.name)],
            requests=[
                r.spec for r in self._topology.requests if self._wiring.uses(name, r.spec.name)
            ],
            telemetry={node.name: self._telemetry[node.name] for node in host.group.nodes},
        )

    def _inbound(self, group: str) -> list[Any]:
        """Queues that live in `group`. With more producers than slots, each still has one."""
        found = []
        for name, queue in self._queues.items():
            if self._wiring.consumer(name) == group:
                slots = max(queue.spec.num_slots, sum(self._wiring.shares(name).values()))
                found.append(replace(queue.spec, num_slots=slots))
        return found

    def _connect(self, hosts: list[_Host], changed: set[str]) -> None:
        """Give `hosts` the handles of the groups in `changed` that they send to."""
        calls = []
        for host in hosts:
            peers = self._peers(host.group.name, changed)
            if peers.consumers or peers.readers:
                calls.append((host, host.handle.connect.remote(peers)))
        for host, call in calls:
            _answer(host, call)

    def _peers(self, name: str, changed: set[str]) -> Peers:
        peers = Peers({}, {})
        for queue in self._queues:
            consumer = self._wiring.consumer(queue)
            if name in self._wiring.ends[queue].writers and consumer in changed - {name}:
                peers.consumers[queue] = self._hosts[consumer].handle
        for board in self._boards:
            readers = changed.intersection(self._wiring.readers_elsewhere(board))
            if self._wiring.writer(board) == name and readers:
                peers.readers[board] = {reader: self._hosts[reader].handle for reader in readers}
        return peers

    def advance(self, seconds: float) -> None:
        running = {host.running: host for host in self._hosts.values()}
        ended, _ = ray.wait(list(running), num_returns=1, timeout=seconds)
        for call in ended:
            self._ended(running[call])
        self._collect_reports()

    def _ended(self, host: _Host) -> None:
        try:
            outcome = ray.get(host.running)
        except ray.exceptions.RayActorError as error:
            if not self._may_restart(host.group) or not self._budget.spend():
                raise NodeFailure(host.group.name, f"its process ended: {error}") from error
            self._restart(host)
            return
        except ray.exceptions.RayError as error:
            raise NodeFailure(host.group.name, str(error)) from error
        raise NodeFailure(*(outcome or (host.group.name, "its roles ended by themselves")))

    def _may_restart(self, group: Group) -> bool:
        """Unless what it knew was in memory that died with its process."""
        shared = (memory.spec.name for memory in self._topology.shared)
        return is_restartable(group) and not any(self._wiring.uses(group.name, s) for s in shared)

    def _restart(self, host: _Host) -> None:
        name = host.group.name
        del self._hosts[name]
        for board in self._boards:
            if self._wiring.uses(name, board):
                self.parameters(board)  # so that the successor begins with the newest there is
        successor = self._place(host.group, host.incarnation + 1)
        self._prepare([successor])
        self._hosts[name] = successor
        self._connect([successor], set(self._hosts))
        self._connect([h for h in self._hosts.values() if h is not successor], {name})
        successor.running = successor.handle.run.remote()
        self.restarts += 1

    def _collect_reports(self) -> None:
        """Take the answers that are there and ask again; never waits."""
        waiting = {host.report: host for host in self._hosts.values() if host.report is not None}
        if waiting:
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for call in ready:
                self._take_report(waiting[call])
        now = time.monotonic()
        for host in self._hosts.values():
            if host.report is None and now - host.reported_at >= _REPORT_INTERVAL_SECONDS:
                host.report, host.reported_at = host.handle.report.remote(), now

    def _take_report(self, host: _Host) -> None:
        call, host.report = host.report, None
        try:
            report: Report = ray.get(call, timeout=_ANSWER_SECONDS)
        except ray.exceptions.RayError:
            return  # a dead process; `running` says so too, and why
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
            calls = [host.handle.parameters.remote(board) for host in hosts]
            if calls:
                ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_SECONDS)
                found = [parameters for call in ready if (parameters := _parameters(call))]
                if found:
                    self._known[board] = max(found, key=lambda parameters: parameters.version)
                    break
        return self._known[board]

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id on its machine, for fault tests and profilers."""
        return {name: host.process_id for name, host in self._hosts.items()}

    def stop(self) -> None:
        if self._hosts and ray.is_initialized():
            self._stop_hosts(list(self._hosts.values()))
        self._hosts = {}
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None

    def _stop_hosts(self, hosts: list[_Host]) -> None:
        for host in hosts:
            host.handle.stop.remote()
        running = [host.running for host in hosts if host.running is not None]
        if running:
            ray.wait(running, num_returns=len(running), timeout=_GRACE_SECONDS)
        for host in hosts:
            host.report = host.handle.report.remote()
            self._take_report(host)
        for name in self._known:
            self.parameters(name)
        for host in hosts:
            ray.kill(host.handle)


def _fraction(available: float, num_groups: int) -> float:
    """A whole unit for each group where there are enough, else an even part of half of them."""
    return 1.0 if available >= num_groups else round(available / (2 * num_groups), 3)


def _wants_gpu(group: Group) -> bool:
    devices = (str(node.arguments.get("device", "")) for node in group.nodes)
    return any(device.startswith("cuda") for device in devices)


def _answer(host: _Host, call: Any) -> Any:
    try:
        return ray.get(call, timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        raise NodeFailure(host.group.name, f"its process did not answer: {error}") from error


def _parameters(call: Any) -> Parameters | None:
    try:
        found: Parameters = ray.get(call)
    except ray.exceptions.RayError:
        return None
    return Parameters(np.array(found.vector), found.version)
