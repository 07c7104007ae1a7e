# SPDX-License-Identifier: Apache-2.0
"""Queues and boards over a block of memory, the same within one process and between processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from veldt.backends.shared_memory.memory import Block
from veldt.backends.shared_memory.signals import Bell, Doorbell, Indices
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
    """The slots of one queue and who holds each of them: a producer (its number), the consumer (its
    number, negative), or nobody because the slot is free or queued."""

    FREE, QUEUED = 0, 1 << 40

    def __init__(
        self, spec: QueueSpec, block: Block, free: Indices, full: Indices, verify: bool = False
    ) -> None:
        self.spec, self.block, self.free, self.full, self.verify = spec, block, free, full, verify
        self.holders = block.array("int64", spec.num_slots)
        memory = block.memory[_holders_nbytes(spec) :]
        self.slots = slots_over(spec.layout, memory, spec.num_slots)

    @staticmethod
    def nbytes(spec: QueueSpec) -> int:
        return spec.layout.nbytes * spec.num_slots + _holders_nbytes(spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return QueueMemory, (self.spec, self.block, self.free, self.full, self.verify)

    @property
    def num_rows(self) -> int:
        """Rows of a trajectory slot."""
        return self.spec.layout["first"].shape[0]

    def fill(self) -> float:
        """Share of the slots that are filled and wait for the consumer."""
        return len(self.full) / self.spec.num_slots

    def close(self) -> None:
        self.free.close()
        self.full.close()
        self.block.close()

    def reclaim(self, holder: int) -> int:
        """Free the slots a dead process held. What it had half written is lost, never delivered."""
        return self.recover(np.flatnonzero(np.abs(self.holders) == holder))

    def suspects(self) -> set[int]:
        """Slots that are nowhere: a process died between taking a number from a pipe and writing
        down that it has it. A live process passes through that moment too, in microseconds; only
        who is still a suspect a while later is lost."""
        present = []
        while (index := self.free.pop()) is not None:
            present.append(index)
        missing = set(np.flatnonzero(self.holders == self.FREE).tolist()) - set(present)
        for index in present:
            self.free.push(index)
        if not len(self.full):
            missing |= set(np.flatnonzero(self.holders == self.QUEUED).tolist())
        return missing

    def recover(self, lost: Iterable[int]) -> int:
        """Free slots that nobody will give back; returns how many."""
        count = 0
        for index in lost:
            self.holders[index] = self.FREE
            self.free.push(int(index))
            count += 1
        return count


def _holders_nbytes(spec: QueueSpec) -> int:
    return -(-spec.num_slots * 8 // 64) * 64


class QueueSink:
    """The producing end. `holder` is the number of this process group, one or more."""

    def __init__(self, memory: QueueMemory, holder: int, consumers: Iterable[Doorbell]) -> None:
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
        for doorbell in self._consumers:
            doorbell.ring()


class TornSlotError(RuntimeError):
    """A slot arrived whose bytes are not those its producer committed."""


class QueueSource:
    """The consuming end: joins `slots_per_batch` slots into one batch.

    One slot is passed on as it lies in memory. Several are copied side by side into buffers
    allocated once, and each slot goes back to its producer as soon as it is copied."""

    def __init__(
        self,
        memory: QueueMemory,
        holder: int,
        producers: Iterable[Doorbell],
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
        for doorbell in self._producers:
            doorbell.ring()


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
    if checksum(slot.raw) != promised:
        raise TornSlotError(f"slot {slot.index} does not match its checksum")


class BoardMemory:
    """The newest versions of one flat vector: a ring of buffers, each guarded by a sequence number.

    One writer. A reader copies and then checks the buffer's sequence number and checksum; both must
    be as before the copy, otherwise it reads again. It never sees a mix of two versions. Nor does
    it see one before it is announced, as it could in a buffer that was filled anew while it was on
    its way there: the announced one, which it might read next, would then be a step back."""

    _HEADER = 4  # latest count, then padding
    _GUARD = 4  # per buffer: sequence (odd while written), version, checksum, count

    def __init__(self, spec: BoardSpec, block: Block) -> None:
        self.spec, self.block = spec, block
        words = self._HEADER + self._GUARD * spec.history
        header = block.array("int64", words)
        self._latest = header[: self._HEADER]
        self._guards = header[self._HEADER :].reshape(spec.history, self._GUARD)
        stride = _padded(spec.size)
        vectors = block.array("float32", stride * spec.history, offset=-(-words * 8 // 64) * 64)
        self._vectors = vectors.reshape(spec.history, stride)[:, : spec.size]

    @classmethod
    def nbytes(cls, spec: BoardSpec) -> int:
        words = cls._HEADER + cls._GUARD * spec.history
        return -(-words * 8 // 64) * 64 + _padded(spec.size) * 4 * spec.history

    def __reduce__(self) -> tuple[Any, ...]:
        return BoardMemory, (self.spec, self.block)

    def publish(self, parameters: Parameters) -> None:
        count = int(self._latest[0]) + 1
        position = count % self.spec.history
        guard, vector = self._guards[position], self._vectors[position]
        guard[0] |= 1  # it is odd already where an earlier writer died in the midst of this
        vector[:] = parameters.vector
        guard[1] = parameters.version
        guard[2] = checksum(vector)
        guard[3] = count
        guard[0] += 1
        self._latest[0] = count

    def version(self) -> int:
        """The newest version, -1 before the first."""
        count = int(self._latest[0])
        return int(self._guards[count % self.spec.history, 1]) if count else -1

    def pull(self, into: np.ndarray, newer_than: int, extra_lag: int = 0) -> int | None:
        for _ in range(_MAX_TORN_READS):
            count = int(self._latest[0])
            if count == 0:
                return None
            wanted = max(count - extra_lag, count - self.spec.history + 2, 1)
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


def _padded(size: int) -> int:
    return -(-size // 16) * 16


class BoardSource:
    """The reading end of a board."""

    def __init__(self, memory: BoardMemory, extra_lag_updates: int = 0) -> None:
        self._memory, self._extra_lag = memory, extra_lag_updates

    def pull(self, into: np.ndarray, newer_than: int) -> int | None:
        return self._memory.pull(into, newer_than, self._extra_lag)


class BoardSink:
    """The writing end: announces new weights and wakes whoever waits for them."""

    def __init__(self, memory: BoardMemory, readers: Iterable[Bell]) -> None:
        self._memory, self._readers = memory, tuple(readers)

    def publish(self, parameters: Parameters) -> None:
        self._memory.publish(parameters)
        for doorbell in self._readers:
            doorbell.ring()
