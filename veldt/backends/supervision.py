# SPDX-License-Identifier: Apache-2.0
"""What a supervisor does about dead and silent processes: when to restart, what to take back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from veldt.backends.shared_memory.channels import RequestMemory, contents
from veldt.backends.shared_memory.fabric import Fabric
from veldt.telemetry.counters import NodeSnapshot

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0
_WINDOW_SECONDS = 60.0

_Question = tuple[int, int, int]
"""Slot, number of the question, and the process that took it."""


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


def silent_seconds(snapshots: list[NodeSnapshot], since: float) -> float:
    """Seconds since the last heartbeat of the most silent of a group's nodes, or since `since`."""
    now = time.monotonic()
    beats = [snapshot.counters.get("heartbeat_seconds", 0.0) for snapshot in snapshots]
    return now - min((max(beat, since) for beat in beats), default=now)


class Recovery:
    """Takes back what dead processes held: slots, and questions that they were to answer.

    A process that dies between taking a number from a pipe and noting it leaves no trace of its
    own. Live processes are in that state for microseconds, so what is found there counts as lost
    only if it is still there at the next `look`."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._slots: dict[str, set[int]] = {}
        self._questions: dict[str, set[_Question]] = {}
        self._is_needed = False

    def died(self, holder: int) -> None:
        """Withdraw the questions of a dead process and free its slots, before its restart."""
        self._is_needed = True
        for name, requests in self._fabric.requests.items():
            for slot in np.flatnonzero(requests.queue.holders == holder).tolist():
                requests.ledger.withdraw(slot)
            self._questions.setdefault(name, set()).update(_unanswered(requests, holder))
        for queue in self._fabric.queues.values():
            queue.reclaim(holder)

    def look(self) -> None:
        """Recover what was lost in the moment of a death; called about twice per second."""
        if not self._is_needed:
            return
        for name, queue in self._fabric.queues.items():
            suspects = queue.suspects()
            queue.recover(suspects & self._slots.get(name, set()))
            self._slots[name] = suspects
        for name, questions in self._questions.items():
            if _ask_again(self._fabric.requests[name], questions):
                for reader in self._fabric.readers[name]:
                    self._fabric.doorbells[reader].ring()
            questions.clear()


def _unanswered(requests: RequestMemory, holder: int) -> Iterator[_Question]:
    """Open questions that `holder` took, or that no process has although they do not wait."""
    ledger, waiting = requests.ledger, set(contents(requests.pending))
    for slot in range(ledger.num_slots):
        row, taker = ledger.asked[slot] - 1, ledger.takers[slot]
        is_waiting = slot * requests.queue.num_rows + row in waiting
        if row >= 0 and (taker == holder or (taker == 0 and not is_waiting)):
            yield slot, ledger.counts[slot], taker


def _ask_again(requests: RequestMemory, questions: set[_Question]) -> int:
    """Queue the questions that are unchanged and unanswered; returns how many."""
    ledger, count = requests.ledger, 0
    answered = {key for keys in requests.answered.values() for key in contents(keys)}
    for slot, number, taker in questions:
        row = ledger.asked[slot] - 1
        key = slot * requests.queue.num_rows + row
        is_unchanged = (ledger.counts[slot], ledger.takers[slot]) == (number, taker)
        if row >= 0 and is_unchanged and key not in answered:
            ledger.takers[slot] = 0
            requests.pending.push(key)
            count += 1
    return count
