# SPDX-License-Identifier: Apache-2.0
"""Requests for inference over shared memory: four bytes to the server, four bytes back.

A key is slot * rows + row. Observations stay where the actor wrote them, so what travels does not
grow with their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from veldt.backends.shared_memory.channels import QueueMemory
from veldt.backends.shared_memory.memory import Block
from veldt.backends.shared_memory.signals import Doorbell, Indices
from veldt.types import Slot

_NONE = 0


class Ledger:
    """Which question is open in each slot and who took it. A question outlives a server that died
    with it, is answered once, and is withdrawn when the one who asked dies."""

    def __init__(self, block: Block, num_slots: int) -> None:
        self.block, self.num_slots = block, num_slots
        words = block.memory.cast("q")
        self.asked, self.takers, self.counts = (
            words[place * num_slots : (place + 1) * num_slots] for place in range(3)
        )
        """By slot: the open row + 1, the process that took it, and the questions so far."""

    @staticmethod
    def nbytes(num_slots: int) -> int:
        return 3 * 8 * num_slots

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger, (self.block, self.num_slots)

    def ask(self, slot: int, row: int) -> None:
        self.takers[slot] = _NONE
        self.counts[slot] += 1
        self.asked[slot] = row + 1

    def take(self, slot: int, row: int, holder: int) -> bool:
        """False for a question that was withdrawn or that somebody else has taken."""
        if self.asked[slot] != row + 1 or self.takers[slot] != _NONE:
            return False
        self.takers[slot] = holder
        return True

    def is_taken_by(self, slot: int, row: int, holder: int) -> bool:
        return self.asked[slot] == row + 1 and self.takers[slot] == holder

    def close_question(self, slot: int) -> None:
        self.asked[slot] = _NONE


@dataclass
class RequestMemory:
    """Keys waiting for a server, and keys answered, one FIFO per client."""

    queue: QueueMemory
    pending: Indices
    answered: Mapping[int, Indices]
    ledger: Ledger

    def part_for(self, clients: set[int] | None) -> RequestMemory:
        """What these clients need, or a server, who needs all."""
        if clients is None:
            return self
        return replace(self, answered={client: self.answered[client] for client in clients})

    def close(self) -> None:
        for indices in (self.pending, *self.answered.values()):
            indices.close()
        self.ledger.block.close()


class RequestClient:
    """An actor's end: asks about a row and learns which rows have been answered."""

    def __init__(self, memory: RequestMemory, client: int, servers: Iterable[Doorbell]) -> None:
        self._pending, self._answered = memory.pending, memory.answered[client]
        self._ledger, self._rows = memory.ledger, memory.queue.num_rows
        self._servers = tuple(servers)

    def send(self, slot: Slot, row: int) -> None:
        self._ledger.ask(slot.index, row)
        self._pending.push(slot.index * self._rows + row)
        for doorbell in self._servers:
            doorbell.ring()

    def answered(self) -> tuple[int, int] | None:
        """(slot index, row) of the next answered request, or None."""
        key = self._answered.pop()
        if key is None:
            return None
        slot, row = divmod(key, self._rows)
        if self._ledger.asked[slot] == row + 1:
            self._ledger.close_question(slot)
        return slot, row


class RequestServer:
    """A server's end. Any number of servers may take from the same requests. `clients` has the
    doorbells of those who can be woken from here."""

    def __init__(
        self, memory: RequestMemory, clients: Mapping[int, Doorbell], holder: int = 1
    ) -> None:
        self._memory, self._clients, self._holder = memory, clients, holder
        self._rows, self._ledger = memory.queue.num_rows, memory.ledger

    def take(self) -> tuple[Slot, int] | None:
        """The next request: a slot and the row to answer in it."""
        while (key := self._memory.pending.pop()) is not None:
            slot, row = divmod(key, self._rows)
            if self._ledger.take(slot, row, self._holder):
                return self._memory.queue.slots[slot], row
        return None

    def answer(self, slot: Slot, row: int, client: int) -> None:
        """Tell `client` that the action is in its row."""
        if not self._ledger.is_taken_by(slot.index, row, self._holder):
            return  # its asker died meanwhile
        self._memory.answered[client].push(slot.index * self._rows + row)
        doorbell = self._clients.get(client)
        if doorbell is not None:
            doorbell.ring()
