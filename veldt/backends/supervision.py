# SPDX-License-Identifier: Apache-2.0
"""What a supervisor does about dead and silent processes: when to restart, what to take back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from veldt.backends.shared_memory.channels import QueueMemory, RequestMemory
from veldt.backends.shared_memory.fabric import Fabric
from veldt.telemetry.counters import NodeSnapshot

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0
_WINDOW_SECONDS = 60.0


@dataclass
class RestartPolicy:
    """A restart budget per minute and a delay that doubles while a group keeps dying."""

    restarts_per_minute: int = 20
    _times: list[float] = field(default_factory=list)

    def next_delay(self) -> float | None:
        """Seconds until the group may start again; None when it has died too often."""
        now = time.monotonic()
        self._times = [then for then in self._times if now - then < _WINDOW_SECONDS]
        recent = sum(now - then < _LONGEST_DELAY_SECONDS for then in self._times)
        self._times.append(now)
        if len(self._times) > self.restarts_per_minute:
            return None
        if not recent:
            return 0.0
        return min(_FIRST_DELAY_SECONDS * 2 ** (recent - 1), _LONGEST_DELAY_SECONDS)


def heartbeats(snapshots: Iterable[NodeSnapshot]) -> list[float]:
    """When each node last ended a step, by the clock of its machine; 0 before the first."""
    return [snapshot.counters.get("heartbeat_seconds", 0.0) for snapshot in snapshots]


def silent_seconds(snapshots: Iterable[NodeSnapshot], since: float) -> float:
    """Seconds since the last heartbeat of the most silent of a group's nodes, or since `since`."""
    now = time.monotonic()
    return now - min((max(beat, since) for beat in heartbeats(snapshots)), default=now)


class Recovery:
    """Takes back the slots of dead processes, and the requests that they were to answer.

    A process that dies between taking a number from a pipe and noting it leaves no trace of its
    own. A live process may be in that state too, and be stopped there: a slot that is found counts
    as lost only if it is still there after every live node has ended a step."""

    def __init__(self, fabric: Fabric) -> None:
        self._memories: list[RequestMemory | QueueMemory] = [
            *fabric.requests.values(),
            *fabric.queues.values(),
        ]
        self._suspects: list[dict[int, float]] = [{} for _ in self._memories]
        """When each was first found."""
        self._is_needed = False

    def died(self, holder: int) -> None:
        """Free what a dead process held, before its restart."""
        self._is_needed = True
        for memory in self._memories:  # requests first: whose they were is known by the slots
            memory.reclaim(holder)

    def check(self, beats: list[float]) -> None:
        """Recover what was lost in the moment of a death; called about twice per second.

        Args:
            beats: The last heartbeats of all live nodes.
        """
        if not self._is_needed:
            return
        now, oldest = time.monotonic(), min(beats, default=0.0)
        for place, memory in enumerate(self._memories):
            before = self._suspects[place]
            suspects = {key: before.get(key, now) for key in memory.suspects()}
            # A request may be queued twice: it is taken once.
            until = oldest if isinstance(memory, QueueMemory) else now
            lost = {key for key, since in suspects.items() if since < until}
            memory.recover(lost)
            self._suspects[place] = {key: suspects[key] for key in suspects.keys() - lost}
        settled = all(memory.is_settled() for memory in self._memories)
        self._is_needed = not settled or any(self._suspects)
