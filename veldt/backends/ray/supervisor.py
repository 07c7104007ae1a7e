# SPDX-License-Identifier: Apache-2.0
"""Places, starts, connects and replaces the node processes of a run on Ray.

Nothing here waits for a replacement: where the cluster has no room for it, the others continue, and
it joins them when there is room again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from veldt.backends.base import NodeFailure, is_restartable
from veldt.backends.ray.channels import Handle
from veldt.backends.ray.node import NodeHost, Peers, Report
from veldt.backends.ray.wiring import Wiring
from veldt.backends.supervision import RestartPolicy
from veldt.topology import Group
from veldt.types import Parameters

if TYPE_CHECKING:
    from veldt.backends.ray.backend import RayBackend

ANSWER_SECONDS = 10.0
_START_SECONDS = 120.0
_ROOM_SECONDS = 15.0  # most of which a process may need to start
_IDLE_SECONDS = 0.1
_REPORT_INTERVAL_SECONDS = 0.1
_STACK_SECONDS = 1.0
_SPARE_CALLS = 64  # other calls than deliveries that a process answers at a time


@dataclass
class Host:
    """The driver's side of one node process."""

    group: Group
    incarnation: int
    handle: Handle
    process_id: int = 0
    running: Any = None
    """The call that returns when the group's roles end."""
    report: Any = None
    asked_at: float = 0.0
    silent: float = 0.0
    """Seconds without a heartbeat, by the process's own clock at its last report."""
    placed_at: float = field(default_factory=time.monotonic)
    is_overdue: bool = False
    """A note was written because it waits for so long."""

    def died(self, error: Exception) -> NodeFailure:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return NodeFailure(self.group.name, f"its process ended: {first}", str(error))

    def ask_for_report(self) -> None:
        """At most one question at a time, and not too often."""
        now = time.monotonic()
        if self.report is None and now - self.asked_at >= _REPORT_INTERVAL_SECONDS:
            self.report, self.asked_at = self.handle.report.remote(), now

    def silent_seconds(self) -> float:
        """Seconds since the last sign of life of the roles, or of the whole process."""
        unanswered = time.monotonic() - self.asked_at if self.report is not None else 0.0
        return max(self.silent, unanswered)

    def kill_silent(self) -> str:
        """End a process that hangs; returns for how long, and its stack."""
        stack = answers([self.handle.stack.remote()], _STACK_SECONDS)
        text = stack[0] if stack else "(no Python stack: the process does not answer)"
        note = f"{self.group.name} was silent for {self.silent_seconds():.0f} s\n{text}"
        ray.kill(self.handle)
        self.report, self.silent, self.asked_at = None, 0.0, time.monotonic()
        return note


def answers(calls: list[Any], seconds: float = ANSWER_SECONDS) -> list[Any]:
    """The results of those calls that succeed in time."""
    ready, _ = ray.wait(calls, num_returns=len(calls), timeout=seconds) if calls else ([], [])
    found = []
    for call in ready:
        try:
            found.append(ray.get(call))
        except ray.exceptions.RayError:
            continue  # a dead process, whose `running` fails too, with the cause
    return found


def reports(hosts: list[Host], seconds: float = 0.0) -> list[Report]:
    """The reports that were asked for and arrive within `seconds`."""
    asked = {host.report: host for host in hosts if host.report is not None}
    if not asked:
        return []
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    found = []
    for call in ready:
        host = asked[call]
        host.report = None
        for report in answers([call]):
            host.silent = report.silent_seconds
            found.append(report)
    return found


class Placement:
    """Each group's share of the cluster, decided once at the start.

    What others depend on (a learner, a replay, a server) has a reservation, on the driver's node if
    it fits there: losing another node then costs actors only, and no actor can take its place."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        total, groups = ray.cluster_resources(), list(wiring.groups.values())
        num_wanting = sum(_wants_gpu(group) for group in groups)
        self._cpus = _fraction(total.get("CPU", 1.0), len(groups))
        self._gpus = _fraction(total.get("GPU", 1.0), num_wanting) if num_wanting else 0.0
        here = ray.get_runtime_context().get_node_id()
        self._reservations = {
            group.name: ray.util.placement_group(
                [self.needs(group)], strategy="STRICT_PACK", _soft_target_node_id=here
            )
            for group in groups
            if group.name not in wiring.dispensable
        }

    def needs(self, group: Group) -> dict[str, float]:
        """The resources that the group's process asks for."""
        return {"CPU": self._cpus} | ({"GPU": self._gpus} if _wants_gpu(group) else {})

    def place(self, group: Group, incarnation: int) -> Host:
        """Ask Ray for a process, which may have to wait for room."""
        needs, reservation = self.needs(group), self._reservations.get(group.name)
        strategy: Any = "SPREAD"
        if reservation is not None:
            strategy = PlacementGroupSchedulingStrategy(reservation)
        options = {
            "num_cpus": needs["CPU"],
            "num_gpus": needs.get("GPU", 0.0),
            "scheduling_strategy": strategy,
            "max_concurrency": 2 * self._wiring.calls_at_a_time(group.name) + _SPARE_CALLS,
            "max_restarts": 0,  # the supervisor restarts: a successor has to be connected
            "max_task_retries": -1,  # a call is repeated until it was answered or its process died
        }
        return Host(group, incarnation, ray.remote(NodeHost).options(**options).remote())

    def release(self) -> None:
        for reservation in self._reservations.values():
            ray.util.remove_placement_group(reservation)
        self._reservations = {}


def _fraction(available: float, num_groups: int) -> float:
    """One unit per group if there are enough, otherwise an equal part of half of them."""
    return 1.0 if available >= num_groups else round(available / (2 * num_groups), 3)


def _wants_gpu(group: Group) -> bool:
    return any(node.role.device().startswith("cuda") for node in group.nodes)


Returned = Callable[[Host, Any], None]
"""Receives the result of a call."""


class Supervisor:
    """The processes of all groups. `hosts` are those that run, by group name."""

    def __init__(self, wiring: Wiring, backend: RayBackend) -> None:
        self._wiring, self._backend = wiring, backend
        self._placement: Placement | None = None
        self.hosts: dict[str, Host] = {}
        self._due: list[tuple[float, Host]] = []
        """Dead processes, and when each may be replaced."""
        self._pending: dict[Any, tuple[Host, Returned | None]] = {}
        """Calls in flight, with what to do when they return."""
        self.policies = {name: RestartPolicy() for name in wiring.groups}
        self.restarted: Counter[str] = Counter()
        self.notes: list[str] = []

    def start(self, incarnation: int) -> None:
        """Start all processes; returns when they run."""
        self._placement = placement = Placement(self._wiring)
        for group in self._wiring.groups.values():
            self.hosts[group.name] = placement.place(group, incarnation)
        hosts = list(self.hosts.values())
        calls = [host.handle.prepare.remote(self._backend.assignment(host)) for host in hosts]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=_START_SECONDS)
        for host, call in zip(hosts, calls, strict=True):
            if call not in ready:
                raise NodeFailure(
                    host.group.name,
                    f"Ray did not start its process within {_START_SECONDS:.0f} s; the cluster has"
                    f" {ray.available_resources()} to spare",
                )
            try:
                host.process_id = ray.get(call)
            except ray.exceptions.RayError as error:
                raise host.died(error) from error
        for host in hosts:
            self._run(host, {})

    def _run(self, host: Host, newest: dict[str, Parameters]) -> None:
        # One call for all of it, because Ray does not keep the order of calls.
        peers = self._peers(host.group.name, set(self.hosts))
        host.running = host.handle.run.remote(peers, newest)

    def _introduce(self, newcomer: Host) -> None:
        """Send the handle of a successor to the processes that send to it."""
        for host in self.hosts.values():
            peers = self._peers(host.group.name, {newcomer.group.name})
            if host is not newcomer and (peers.consumers or peers.readers or peers.servers):
                self._pending[host.handle.connect.remote(peers)] = host, None

    def _peers(self, name: str, changed: set[str]) -> Peers:
        wiring, hosts = self._wiring, self.hosts
        return Peers(
            {q: hosts[c].handle for q, c in wiring.consumers_for(name).items() if c in changed},
            {
                board: {reader: hosts[reader].handle for reader in changed.intersection(readers)}
                for board, readers in wiring.readers_for(name).items()
                if changed.intersection(readers)
            },
            {s: hosts[g].handle for s, g in wiring.servers_for(name).items() if g in changed},
        )

    def watch(self, seconds: float) -> None:
        """Wait up to `seconds` until a process ends or a call returns, and react to it."""
        running = {host.running: (host, self._ended) for host in self.hosts.values()}
        calls = {**running, **self._pending}
        if calls:
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=seconds)
            for call in ready:
                self._pending.pop(call, None)
                self._react(call, *calls[call])
        else:
            time.sleep(min(seconds, _IDLE_SECONDS))
        self._replace_those_due()

    def _react(self, call: Any, host: Host, returned: Returned | None) -> None:
        try:
            result = ray.get(call)
        except ray.exceptions.RayActorError as error:
            if returned is not None:  # otherwise `running` fails too
                self._lost(host, error)
        except ray.exceptions.RayError as error:
            raise host.died(error) from error
        else:
            if returned is not None:
                returned(host, result)

    def _ended(self, host: Host, failure: tuple[str, str, str] | None) -> None:
        raise NodeFailure(*(failure or (host.group.name, "its roles ended by themselves")))

    def _prepared(self, host: Host, process_id: int) -> None:
        host.process_id = process_id
        self.hosts[host.group.name] = host
        self._run(host, self._backend.newest_for(host.group))
        self._introduce(host)
        self.restarted[host.group.name] += 1

    def _lost(self, host: Host, error: Exception) -> None:
        name = host.group.name
        delay = self.policies[name].next_delay() if is_restartable(host.group) else None
        if delay is None:
            raise host.died(error) from error
        self.notes.append(f"{host.died(error)} and is restarted")
        ray.kill(host.handle)  # it may be out of reach rather than dead
        self.hosts.pop(name, None)
        self._backend.lost(host.group)
        self._due.append((time.monotonic() + delay, host))

    def _replace_those_due(self) -> None:
        assert self._placement is not None
        now = time.monotonic()
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            host = self._placement.place(entry[1].group, entry[1].incarnation + 1)
            call = host.handle.prepare.remote(self._backend.assignment(host))
            self._pending[call] = host, self._prepared
        for host, _ in self._pending.values():
            is_late = not host.process_id and now - host.placed_at > _ROOM_SECONDS
            if is_late and not host.is_overdue:
                host.is_overdue = True
                needs = self._placement.needs(host.group)
                self.notes.append(f"{host.group.name} waits until the cluster has room: {needs}")

    def absent(self) -> set[str]:
        """Groups that are being replaced and that no other group depends on."""
        return self._wiring.dispensable - self.hosts.keys()

    def close(self) -> None:
        """End all processes: senders first, so that no call is left without an answer."""
        hosts = [*self.hosts.values(), *(host for host, _ in self._pending.values())]
        for host in sorted(hosts, key=lambda host: not self._wiring.outbound(host.group.name)):
            ray.kill(host.handle)
        if self._placement is not None:
            self._placement.release()
        self.hosts.clear()
        self._pending, self._due = {}, []
