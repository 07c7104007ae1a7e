# SPDX-License-Identifier: Apache-2.0
"""Requests for inference over shared memory: four bytes to the server, four bytes back.

A key is slot * rows + row. Observations stay where the actor wrote them, so what travels does not
grow with their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from veldt.backends.signals import Doorbell, Indices
from veldt.types import Slot


class Rows(Protocol):
    """The slots that questions are about."""

    @property
    def slots(self) -> list[Slot]: ...

    @property
    def num_rows(self) -> int: ...


@dataclass
class RequestMemory:
    """Keys waiting for a server, and keys answered, one FIFO per client."""

    queue: Rows
    pending: Indices
    answered: Sequence[Indices]

    def close(self) -> None:
        for indices in (self.pending, *self.answered):
            indices.close()


class RequestClient:
    """An actor's end: asks about a row and learns which rows have been answered."""

    def __init__(self, memory: RequestMemory, client: int, servers: Iterable[Doorbell]) -> None:
        self._pending, self._answered = memory.pending, memory.answered[client]
        self._rows = memory.queue.num_rows
        self._servers = tuple(servers)

    def send(self, slot: Slot, row: int) -> None:
        self._pending.push(slot.index * self._rows + row)
        for doorbell in self._servers:
            doorbell.ring()

    def answered(self) -> tuple[int, int] | None:
        """(slot index, row) of the next answered request, or None."""
        key = self._answered.pop()
        return None if key is None else divmod(key, self._rows)


class RequestServer:
    """A server's end. Any number of servers may take from the same requests. `clients` has the
    doorbells of those who can be woken from here."""

    def __init__(self, memory: RequestMemory, clients: Mapping[int, Doorbell]) -> None:
        self._memory, self._clients = memory, clients
        self._rows = memory.queue.num_rows

    def take(self) -> tuple[Slot, int] | None:
        """The next request: a slot and the row to answer in it."""
        key = self._memory.pending.pop()
        if key is None:
            return None
        slot, row = divmod(key, self._rows)
        return self._memory.queue.slots[slot], row

    def answer(self, slot: Slot, row: int, client: int) -> None:
        """Tell `client` that the action is in its row."""
        self._memory.answered[client].push(slot.index * self._rows + row)
        doorbell = self._clients.get(client)
        if doorbell is not None:
            doorbell.ring()

    def waiting(self) -> int:
        return len(self._memory.pending)
