# SPDX-License-Identifier: Apache-2.0
"""Starts the node processes of a run on Ray, connects them, and replaces those that die.

Nothing here waits for a replacement: where the cluster has no room for it, the others go on, and it
joins them when there is room again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from veldt.backends.base import NodeFailure
from veldt.backends.elastic import Elastic
from veldt.backends.ray.cluster import ray
from veldt.backends.ray.host import Host
from veldt.backends.ray.membership import Membership
from veldt.backends.ray.messages import Assignment, Peers
from veldt.backends.ray.placement import Placement
from veldt.backends.ray.wiring import Wiring
from veldt.backends.supervision import RestartPolicy
from veldt.topology import Group
from veldt.types import Parameters

START_SECONDS = 120.0
_ROOM_SECONDS = 10.0
_IDLE_SECONDS = 0.1


class Owner(Protocol):
    """Who knows what the processes are to be told."""

    def assignment(self, host: Host) -> Assignment: ...

    def newest_for(self, group: Group) -> dict[str, Parameters]:
        """By board: what a replacement is to begin with, perhaps long after its assignment."""

    def may_restart(self, group: Group) -> bool: ...

    def lost(self, group: Group) -> None:
        """A process is gone and will be replaced."""


class Supervisor:
    """The processes of all groups. `hosts` are those that run, by group name."""

    def __init__(self, wiring: Wiring, owner: Owner, elastic: Elastic | None = None) -> None:
        self._wiring, self._owner = wiring, owner
        self._placement: Placement | None = None
        self.hosts: dict[str, Host] = {}
        self._waiting: list[tuple[float, Host]] = []
        """Dead ones and when they may start again."""
        self._arriving: dict[Any, Host] = {}
        """Those that Ray may not have room for yet, by the call that returns when they are there.
        They are told nothing before, as what there is to tell grows old."""
        self._starting: dict[Any, Host] = {}
        """Those that build their channels, by the call that returns when they are done."""
        self._connecting: dict[Any, Host] = {}
        self.policies = {name: RestartPolicy() for name in wiring.groups}
        self.restarted: Counter[str] = Counter()
        self.notes: list[str] = []
        self.members = Membership(elastic, self.notes)
        self._is_elastic, self._first_incarnation = elastic is not None, 0

    def start(self, incarnation: int) -> None:
        """Wait until those run that must be there from the start; the others come by and by."""
        self._first_incarnation = incarnation
        self._placement = placement = Placement(self._wiring, self._is_elastic)
        groups = self._wiring.groups.values()
        for group in groups:
            if group.name not in self.members:
                self.hosts[group.name] = placement.place(group, incarnation)
        hosts = list(self.hosts.values())
        self._prepare(hosts)
        for host in hosts:
            self._run(host, {})
        for group in groups:
            if group.name in self.members:
                self._place(group, incarnation)

    def _prepare(self, hosts: list[Host]) -> None:
        calls = [host.handle.prepare.remote(self._owner.assignment(host)) for host in hosts]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=START_SECONDS)
        for host, call in zip(hosts, calls, strict=True):
            if call not in ready:
                raise NodeFailure(
                    host.group.name,
                    f"Ray did not start its process within {START_SECONDS:.0f} s; the cluster has"
                    f" {ray.available_resources()} to spare",
                )
            host.process_id = host.answer(call)

    def _run(self, host: Host, newest: dict[str, Parameters]) -> None:
        # In one call, because Ray may run two in another order than they were made.
        peers = self._peers(host.group.name, set(self.hosts))
        host.running = host.handle.run.remote(peers, newest)

    def _introduce(self, newcomer: Host) -> None:
        """Give the others the handle of a successor, where they send to it."""
        for host in self.hosts.values():
            peers = self._peers(host.group.name, {newcomer.group.name})
            if host is not newcomer and (peers.consumers or peers.readers):
                self._connecting[host.handle.connect.remote(peers)] = host

    def _peers(self, name: str, changed: set[str]) -> Peers:
        wiring, hosts = self._wiring, self.hosts
        return Peers(
            {q: hosts[c].handle for q, c in wiring.consumers_for(name).items() if c in changed},
            {
                board: {reader: hosts[reader].handle for reader in changed.intersection(readers)}
                for board, readers in wiring.readers_for(name).items()
                if changed.intersection(readers)
            },
        )

    def watch(self, seconds: float) -> None:
        """Wait for about `seconds`, or until a process ends or starts, and do what it takes."""
        calls: dict[Any, Callable[[Any], None]] = {
            host.running: partial(self._ended, host) for host in self.hosts.values()
        }
        calls |= {call: partial(self._arrived, host) for call, host in self._arriving.items()}
        calls |= {call: partial(self._started, host) for call, host in self._starting.items()}
        calls |= {call: partial(self._connected, host) for call, host in self._connecting.items()}
        if calls:
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=seconds)
            for call in ready:
                calls[call](call)
        else:
            time.sleep(min(seconds, _IDLE_SECONDS))
        self._replace_those_due()

    def _ended(self, host: Host, call: Any) -> None:
        try:
            outcome = ray.get(call)
        except ray.exceptions.RayActorError as error:
            self._lost(host, error)
        except ray.exceptions.RayError as error:
            raise host.died(error) from error
        else:
            raise NodeFailure(*(outcome or (host.group.name, "its roles ended by themselves")))

    def _lost(self, host: Host, error: Exception) -> None:
        name = host.group.name
        may = self._owner.may_restart(host.group)
        delay = self.policies[name].next_delay() if may else None
        if delay is None:
            raise host.died(error) from error
        self.notes.append(f"{host.died(error)} and is restarted")
        ray.kill(host.handle)  # it may be out of reach rather than dead
        if self.hosts.pop(name, None) is not None and name in self.members:
            self.members.left()
        self._owner.lost(host.group)
        self._waiting.append((time.monotonic() + delay, host))

    def _replace_those_due(self) -> None:
        assert self._placement is not None
        now = time.monotonic()
        for due in [entry for entry in self._waiting if entry[0] <= now]:
            self._waiting.remove(due)
            self._place(due[1].group, due[1].incarnation + 1)
        self.members.say()
        for host in self._arriving.values():
            name, needs = host.group.name, self._placement.needs(host.group)
            is_late = now - host.placed_at > _ROOM_SECONDS and name not in self.members
            if is_late and not host.is_overdue:
                host.is_overdue = True
                self.notes.append(f"{name} waits until the cluster has room: {needs}")

    def _place(self, group: Group, incarnation: int) -> None:
        assert self._placement is not None
        host = self._placement.place(group, incarnation)
        self._arriving[host.handle.arrive.remote()] = host

    def _arrived(self, host: Host, call: Any) -> None:
        del self._arriving[call]
        if self._succeeded(host, call):
            assignment = self._owner.assignment(host)
            self._starting[host.handle.prepare.remote(assignment)] = host

    def _started(self, host: Host, call: Any) -> None:
        del self._starting[call]
        if not self._succeeded(host, call):
            return
        host.process_id = ray.get(call)
        for ready in self.members.ready(host) if host.group.name in self.members else [host]:
            self._join(ready)

    def _succeeded(self, host: Host, call: Any) -> bool:
        """Whether a process that is being started has answered; if it died, another is due."""
        try:
            ray.get(call)
        except ray.exceptions.RayActorError as error:
            self._lost(host, error)
            return False
        except ray.exceptions.RayError as error:
            raise host.died(error) from error
        return True

    def _join(self, host: Host) -> None:
        self.hosts[host.group.name] = host
        self._run(host, self._owner.newest_for(host.group))
        self._introduce(host)
        if host.incarnation > self._first_incarnation:
            self.restarted[host.group.name] += 1

    def _connected(self, host: Host, call: Any) -> None:
        del self._connecting[call]
        try:
            ray.get(call)
        except ray.exceptions.RayActorError:
            return  # its `running` says so too, and its successor is given all handles
        except ray.exceptions.RayError as error:
            raise host.died(error) from error

    def absent(self) -> set[str]:
        """Groups that are being replaced and that nobody depends on."""
        missing = self._wiring.groups.keys() - self.hosts.keys()
        return {name for name in missing if not self._wiring.has_dependents(name)}

    def close(self) -> None:
        """End all processes: senders first, so that nobody is left with a call without answer."""
        hosts = [*self.hosts.values(), *self._starting.values(), *self._arriving.values()]
        hosts += self.members.waiting()
        for host in sorted(hosts, key=lambda host: not self._wiring.outbound(host.group.name)):
            ray.kill(host.handle)
        if self._placement is not None:
            self._placement.release()
        self.hosts, self._starting, self._connecting, self._waiting = {}, {}, {}, []
        self._arriving = {}
