# SPDX-License-Identifier: Apache-2.0
"""Queues, boards and requests over blocks of memory, within one process or between several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from veldt.backends.shared_memory.memory import Block, Indices, Wakeable, Waker
from veldt.topology import BoardSpec, QueueSpec
from veldt.types import PROVENANCE_CHECKSUM, Batch, Parameters, Slot, slots_over

_MAX_TORN_READS = 1000


def checksum(raw: np.ndarray) -> int:
    """A 63-bit sum of words: one pass at memory speed, and any mix of two versions changes it."""
    data = raw.view(np.uint8)
    whole = data.size // 8 * 8
    total = int(np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64))
    total += int.from_bytes(data[whole:].tobytes(), "little")
    return total & 0x7FFF_FFFF_FFFF_FFFF


class QueueMemory:
    """The slots of one queue and the holder of each.

    A holder is the number of a producer, the negative number of the consumer, or FREE or QUEUED."""

    FREE, QUEUED = 0, 1 << 40

    def __init__(
        self, spec: QueueSpec, block: Block, free: Indices, full: Indices, verify: bool = False
    ) -> None:
        self.spec, self.block, self.free, self.full, self.verify = spec, block, free, full, verify
        self.holders = block.array("int64", spec.num_slots)
        memory = block.memory[_padded(spec.num_slots * 8) :]
        self.slots = slots_over(spec.layout, memory, spec.num_slots)

    @staticmethod
    def nbytes(spec: QueueSpec) -> int:
        return spec.layout.nbytes * spec.num_slots + _padded(spec.num_slots * 8)

    def __reduce__(self) -> tuple[Any, ...]:
        return QueueMemory, (self.spec, self.block, self.free, self.full, self.verify)

    @property
    def num_rows(self) -> int:
        """Rows of a trajectory slot."""
        return self.spec.layout["first"].shape[0]

    def fill(self) -> float:
        """Share of the slots that wait for the consumer."""
        return len(self.full) / self.spec.num_slots

    def close(self) -> None:
        self.free.close()
        self.full.close()
        self.block.close()

    def reclaim(self, holder: int) -> None:
        """Free the slots that a dead process was writing, and queue again those it was reading."""
        read = self.holders == -holder
        self.holders[read] = self.QUEUED
        self.recover(np.flatnonzero(read | (self.holders == holder)))

    def suspects(self) -> set[int]:
        """Slots in no FIFO and without a holder: their process may have died in between.

        A live process is in that state too, between taking a number from a pipe and noting it."""
        present = contents(self.free)
        missing = set(np.flatnonzero(self.holders == self.FREE).tolist()).difference(present)
        if not len(self.full):
            missing |= set(np.flatnonzero(self.holders == self.QUEUED).tolist())
        return missing

    def is_settled(self) -> bool:
        """Whether `suspects` finds all that is lost: a queued slot could be missed among others."""
        return int(np.sum(self.holders == self.QUEUED)) <= len(self.full)

    def recover(self, lost: Iterable[int]) -> None:
        """Free slots that no process will release; complete ones are queued again."""
        for index in lost:
            if self.holders[index] == self.QUEUED:
                self.full.push(int(index))
            else:
                self.holders[index] = self.FREE
                self.free.push(int(index))


def contents(indices: Indices) -> list[int]:
    """What a FIFO contains; it is unchanged afterwards."""
    found = []
    while (index := indices.pop()) is not None:
        found.append(index)
    for index in found:
        indices.push(index)
    return found


def _padded(count: int, to: int = 64) -> int:
    return -(-count // to) * to


class QueueSink:
    """The producing end. `holder` is the number of this process, one or more."""

    def __init__(self, memory: QueueMemory, holder: int, consumers: Iterable[Waker]) -> None:
        self._memory, self._holder, self._consumers = memory, holder, tuple(consumers)

    def reserve(self) -> Slot | None:
        index = self._memory.free.pop()
        if index is None:
            return None
        self._memory.holders[index] = self._holder
        return self._memory.slots[index]

    def commit(self, slot: Slot) -> None:
        if self._memory.verify and "provenance" in slot.arrays:
            slot["provenance"][0, PROVENANCE_CHECKSUM] = 0
            slot["provenance"][0, PROVENANCE_CHECKSUM] = checksum(slot.raw)
        self._memory.holders[slot.index] = QueueMemory.QUEUED
        self._memory.full.push(slot.index)
        for waker in self._consumers:
            waker.wake()


class TornSlotError(RuntimeError):
    """A slot arrived whose bytes are not those its producer committed."""


class QueueSource:
    """The consuming end: joins `slots_per_batch` slots into one batch.

    A single slot is passed on without a copy. Several are copied side by side into buffers
    allocated once, and each is released as soon as it is copied."""

    def __init__(
        self,
        memory: QueueMemory,
        holder: int,
        producers: Iterable[Waker],
        slots_per_batch: int = 1,
    ) -> None:
        self._memory, self._holder, self._producers = memory, holder, tuple(producers)
        self._slots_per_batch = slots_per_batch
        self._joined = 0
        self._staging = _staging(memory.spec, slots_per_batch) if slots_per_batch > 1 else {}

    def take_batch(self) -> Batch | None:
        if self._slots_per_batch == 1:
            slot = self._take()
            return Batch(slot.arrays, [slot], memory_stays=True) if slot else None
        while self._joined < self._slots_per_batch:
            slot = self._take()
            if slot is None:
                return None
            self._join(slot)
        self._joined = 0
        return Batch(self._staging, memory_stays=True)

    def release(self, batch: Batch) -> None:
        for slot in batch.slots:
            self._give_back(slot)

    def _take(self) -> Slot | None:
        index = self._memory.full.pop()
        if index is None:
            return None
        self._memory.holders[index] = -self._holder
        slot = self._memory.slots[index]
        if self._memory.verify:
            _verify(slot)
        return slot

    def _join(self, slot: Slot) -> None:
        for name, field in self._memory.spec.layout.fields:
            width = field.shape[field.join_axis]
            place = slice(self._joined * width, (self._joined + 1) * width)
            self._staging[name][(slice(None),) * field.join_axis + (place,)] = slot[name]
        self._joined += 1
        self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        self._memory.holders[slot.index] = QueueMemory.FREE
        self._memory.free.push(slot.index)
        for waker in self._producers:
            waker.wake()


def _staging(spec: QueueSpec, slots_per_batch: int) -> dict[str, np.ndarray]:
    arrays = {}
    for name, field in spec.layout.fields:
        shape = list(field.shape)
        shape[field.join_axis] *= slots_per_batch
        arrays[name] = np.zeros(shape, field.dtype)
    return arrays


def _verify(slot: Slot) -> None:
    if "provenance" not in slot.arrays:
        return
    promised = int(slot["provenance"][0, PROVENANCE_CHECKSUM])
    slot["provenance"][0, PROVENANCE_CHECKSUM] = 0
    found = checksum(slot.raw)
    slot["provenance"][0, PROVENANCE_CHECKSUM] = promised  # a successor may take it once more
    if found != promised:
        raise TornSlotError(f"slot {slot.index} does not match its checksum")


class BoardMemory:
    """The newest versions of one flat vector: a ring of buffers, each guarded by a sequence number.

    There is one writer. A reader copies and then compares the buffer's sequence number and checksum
    with those before the copy; if they differ it reads again, so it never returns a mix of two
    versions. Nor does it return one before its count is announced, from a buffer that was refilled
    meanwhile: the next read could then return an older one."""

    _HEADER = 4  # latest count, then padding
    _GUARD = 4  # per buffer: sequence (odd while written), version, checksum, count

    def __init__(self, spec: BoardSpec, block: Block) -> None:
        self.spec, self.block = spec, block
        words = self._HEADER + self._GUARD * spec.history
        header = block.array("int64", words)
        self._latest = header[: self._HEADER]
        self._guards = header[self._HEADER :].reshape(spec.history, self._GUARD)
        stride = _padded(spec.size, 16)
        vectors = block.array("float32", stride * spec.history, offset=_padded(words * 8))
        self._vectors = vectors.reshape(spec.history, stride)[:, : spec.size]

    @classmethod
    def nbytes(cls, spec: BoardSpec) -> int:
        words = cls._HEADER + cls._GUARD * spec.history
        return _padded(words * 8) + _padded(spec.size, 16) * 4 * spec.history

    def __reduce__(self) -> tuple[Any, ...]:
        return BoardMemory, (self.spec, self.block)

    def close(self) -> None:
        self.block.close()

    def publish(self, parameters: Parameters) -> None:
        count = int(self._latest[0]) + 1
        position = count % self.spec.history
        guard, vector = self._guards[position], self._vectors[position]
        guard[0] |= 1  # odd already if an earlier writer died while it wrote
        vector[:] = parameters.vector
        guard[1] = parameters.version
        guard[2] = checksum(vector)
        guard[3] = count
        guard[0] += 1
        self._latest[0] = count

    def version(self) -> int:
        """The newest version, -1 before the first."""
        count = int(self._latest[0])
        return self._version(count) if count else -1

    def _version(self, count: int) -> int:
        return int(self._guards[count % self.spec.history, 1])

    def pull(
        self,
        into: np.ndarray,
        newer_than: int,
        extra_lag: int = 0,
        at_most: int | None = None,
    ) -> int | None:
        for _ in range(_MAX_TORN_READS):
            count = int(self._latest[0])
            if count == 0:
                return None
            oldest, wanted = max(count - self.spec.history + 2, 1), count
            while at_most is not None and wanted > oldest and self._version(wanted) > at_most:
                wanted -= 1
            wanted = max(wanted - extra_lag, oldest)
            position = wanted % self.spec.history
            guard, vector = self._guards[position], self._vectors[position]
            before, version, promised = int(guard[0]), int(guard[1]), int(guard[2])
            if version <= newer_than:
                return None
            into[:] = vector
            intact = int(guard[0]) == before and before % 2 == 0 and int(guard[3]) == wanted
            if intact and checksum(into) == promised:
                return version
        raise RuntimeError(f"the board '{self.spec.name}' changed faster than it could be read")

    def newest(self) -> Parameters:
        """A copy of the newest weights."""
        vector = np.empty(self.spec.size, np.float32)
        version = self.pull(vector, newer_than=-1)
        assert version is not None  # every board starts with its initial version
        return Parameters(vector, version)


class BoardSource:
    """The reading end of a board."""

    def __init__(self, memory: BoardMemory, extra_lag_updates: int = 0) -> None:
        self._memory, self._extra_lag = memory, extra_lag_updates

    def pull(self, into: np.ndarray, newer_than: int, at_most: int | None = None) -> int | None:
        return self._memory.pull(into, newer_than, self._extra_lag, at_most)

    def version(self) -> int:
        return self._memory.version()


class BoardSink:
    """The writing end: publishes new weights and wakes their readers."""

    def __init__(self, memory: BoardMemory, readers: Iterable[Wakeable]) -> None:
        self._memory, self._readers = memory, tuple(readers)

    def publish(self, parameters: Parameters) -> None:
        self._memory.publish(parameters)
        for waker in self._readers:
            waker.wake()


class RequestMemory:
    """Requests for inference about the rows of a queue: keys to servers, keys back to clients.

    A key is slot * rows + row. Observations stay where the actor wrote them, so what is sent does
    not grow with their size. The open request of each slot and the process that took it are in
    shared memory: a request outlives a server that died with it, is answered once, and is
    withdrawn when its client dies."""

    def __init__(
        self, queue: QueueMemory, block: Block, pending: Indices, answered: Mapping[int, Indices]
    ) -> None:
        """`answered` by client."""
        self.queue, self.block, self.pending, self.answered = queue, block, pending, answered
        num_slots = queue.spec.num_slots
        words = block.memory.cast("q")
        self._asked, self._takers = words[:num_slots], words[num_slots : 2 * num_slots]
        """By slot: the open row + 1, and the process that took it or 0."""

    @staticmethod
    def nbytes(spec: QueueSpec) -> int:
        return 2 * 8 * spec.num_slots

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestMemory, (self.queue, self.block, self.pending, self.answered)

    def part_for(self, clients: set[int] | None) -> RequestMemory:
        """What these clients need; None for a server, which needs all."""
        if clients is None:
            return self
        answered = {client: self.answered[client] for client in clients}
        return RequestMemory(self.queue, self.block, self.pending, answered)

    def ask(self, slot: int, row: int) -> None:
        self._takers[slot] = 0
        self._asked[slot] = row + 1

    def take(self, slot: int, row: int, holder: int) -> bool:
        """False for a request that was withdrawn or that another process has taken."""
        if self._asked[slot] != row + 1 or self._takers[slot]:
            return False
        self._takers[slot] = holder
        return True

    def is_taken_by(self, slot: int, row: int, holder: int) -> bool:
        return self._asked[slot] == row + 1 and self._takers[slot] == holder

    def close_request(self, slot: int, row: int) -> None:
        """Note that the client has the answer, unless it has already sent its next request."""
        if self._asked[slot] == row + 1:
            self._asked[slot] = 0

    def reclaim(self, holder: int) -> None:
        """Withdraw the requests of a dead client; return those that a dead server had taken."""
        for slot in np.flatnonzero(self.queue.holders == holder).tolist():
            self._asked[slot] = 0
        for slot, taker in enumerate(self._takers):
            if taker == holder:
                self._takers[slot] = 0

    def suspects(self) -> set[int]:
        """Open requests that no process has taken and that are in no FIFO."""
        present = {
            key for keys in (self.pending, *self.answered.values()) for key in contents(keys)
        }
        return {
            slot * self.queue.num_rows + row - 1
            for slot, (row, taker) in enumerate(zip(self._asked, self._takers, strict=True))
            if row and not taker
        } - present

    def is_settled(self) -> bool:
        """Whether `suspects` finds all that is lost."""
        return True

    def recover(self, lost: Iterable[int]) -> None:
        """Queue requests again; servers skip those that were taken or answered meanwhile."""
        for key in lost:
            self.pending.push(key)

    def close(self) -> None:
        for indices in (self.pending, *self.answered.values()):
            indices.close()
        self.block.close()


class RequestClient:
    """An actor's end: asks about a row and learns which rows have been answered."""

    def __init__(self, memory: RequestMemory, client: int, servers: Iterable[Waker]) -> None:
        self._memory, self._rows = memory, memory.queue.num_rows
        self._pending, self._answered = memory.pending, memory.answered[client]
        self._servers = tuple(servers)
        # Answers that a dead predecessor has not read would be taken for answers to new requests.
        while self._answered.pop() is not None:
            pass

    def send(self, slot: Slot, row: int) -> None:
        self._memory.ask(slot.index, row)
        self._pending.push(slot.index * self._rows + row)
        for waker in self._servers:
            waker.wake()

    def answered(self) -> tuple[int, int] | None:
        """(slot index, row) of the next answered request, or None."""
        key = self._answered.pop()
        if key is None:
            return None
        slot, row = divmod(key, self._rows)
        self._memory.close_request(slot, row)
        return slot, row


class RequestServer:
    """A server's end. Any number of servers may take from the same requests.

    `clients` has the wakers of the clients in other processes."""

    def __init__(
        self, memory: RequestMemory, clients: Mapping[int, Waker], holder: int = 1
    ) -> None:
        self._memory, self._clients, self._holder = memory, clients, holder
        self._rows = memory.queue.num_rows

    def take(self) -> tuple[Slot, int] | None:
        """The next request: a slot and the row to answer in it."""
        while (key := self._memory.pending.pop()) is not None:
            slot, row = divmod(key, self._rows)
            if self._memory.take(slot, row, self._holder):
                return self._memory.queue.slots[slot], row
        return None

    def answer(self, slot: Slot, row: int, client: int) -> None:
        """Notify `client` that the action is in its row."""
        if not self._memory.is_taken_by(slot.index, row, self._holder):
            return  # the process that asked has died
        self._memory.answered[client].push(slot.index * self._rows + row)
        waker = self._clients.get(client)
        if waker is not None:
            waker.wake()
