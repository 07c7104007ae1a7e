# SPDX-License-Identifier: Apache-2.0
"""What a dead process took along: slots that it held, and questions that it was to answer.

Between taking a number from a pipe and writing down who has it lie microseconds. A live process
passes through that moment too, so what is found there counts as lost only on a second look.
"""

from __future__ import annotations

import numpy as np

from veldt.backends.shared_memory.fabric import Fabric
from veldt.backends.shared_memory.requests import RequestMemory
from veldt.backends.shared_memory.signals import Indices

_Question = tuple[int, int, int]
"""Slot, count of the question, and who took it."""


class Recovery:
    """The supervisor's view of one fabric. `look` is for now and then; it does nothing before the
    first death."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._slots: dict[str, set[int]] = {}
        self._questions: dict[str, set[_Question]] = {}
        self._deaths = 0

    def died(self, holder: int) -> None:
        """A process is gone for good: withdraw its questions, free its slots, and note what it was
        to answer. Its successor must not run yet."""
        self._deaths += 1
        for name, requests in self._fabric.requests.items():
            queue = self._fabric.queues[self._queue_of(requests)]
            for slot in np.flatnonzero(queue.holders == holder).tolist():
                requests.ledger.close_question(slot)
            self._questions.setdefault(name, set()).update(_taken_by(requests, holder))
        for queue in self._fabric.queues.values():
            queue.reclaim(holder)

    def look(self) -> None:
        if not self._deaths:
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

    def _queue_of(self, requests: RequestMemory) -> str:
        return next(name for name, queue in self._fabric.queues.items() if queue is requests.queue)


def _taken_by(requests: RequestMemory, holder: int) -> set[_Question]:
    """Open questions that `holder` took, or that nobody has although they do not wait any more."""
    ledger = requests.ledger
    waiting = set(_contents(requests.pending))
    found = set()
    for slot in range(ledger.num_slots):
        row, taker = ledger.asked[slot] - 1, ledger.takers[slot]
        is_waiting = slot * requests.queue.num_rows + row in waiting
        if row >= 0 and (taker == holder or (taker == 0 and not is_waiting)):
            found.add((slot, ledger.counts[slot], taker))
    return found


def _ask_again(requests: RequestMemory, questions: set[_Question]) -> int:
    """Hand questions that are still as they were to whoever serves now."""
    ledger = requests.ledger
    done = {key for answered in requests.answered.values() for key in _contents(answered)}
    count = 0
    for slot, number, taker in questions:
        row = ledger.asked[slot] - 1
        key = slot * requests.queue.num_rows + row
        as_before = (ledger.counts[slot], ledger.takers[slot]) == (number, taker)
        if row >= 0 and as_before and key not in done:
            ledger.takers[slot] = 0
            requests.pending.push(key)
            count += 1
    return count


def _contents(indices: Indices) -> list[int]:
    """What is in a FIFO, which is left as it was."""
    found = []
    while (index := indices.pop()) is not None:
        found.append(index)
    for index in found:
        indices.push(index)
    return found
