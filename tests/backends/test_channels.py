# SPDX-License-Identifier: Apache-2.0
"""Queues and boards over plain memory: hand-over, reclaiming, lag, torn slots and torn vectors."""

import time

import numpy as np
import pytest

from veldt.backends.shared_memory.channels import (
    BoardMemory,
    BoardSource,
    QueueMemory,
    QueueSink,
    QueueSource,
    TornSlotError,
    contents,
)
from veldt.backends.shared_memory.fabric import Fabric
from veldt.backends.shared_memory.memory import Block, IndexDeque
from veldt.backends.supervision import Recovery
from veldt.topology import BoardSpec, QueueSpec
from veldt.types import PROVENANCE_SEQUENCE, Field, Layout, Parameters

LAYOUT = Layout.of(
    row=Field((2, 3), "float32", join_axis=1),
    flag=Field((3,), "bool", join_axis=0),
    provenance=Field((1, 4), "int64", join_axis=0),
)


def queue_memory(num_slots: int = 3, verify: bool = True) -> QueueMemory:
    spec = QueueSpec("queue", LAYOUT, num_slots)
    free = IndexDeque(range(num_slots))
    return QueueMemory(spec, Block(QueueMemory.nbytes(spec)), free, IndexDeque(), verify)


def put(sink: QueueSink, value: int) -> None:
    slot = sink.reserve()
    slot["row"][:] = value
    slot["flag"][:] = value % 2
    slot["provenance"][0, PROVENANCE_SEQUENCE] = value
    sink.commit(slot)


def board_memory(history: int = 2, size: int = 5) -> BoardMemory:
    spec = BoardSpec("board", size, history)
    return BoardMemory(spec, Block(BoardMemory.nbytes(spec)))


def publish(memory: BoardMemory, version: int) -> None:
    memory.publish(Parameters(np.full(memory.spec.size, version, np.float32), version))


def test_joined_slots_lie_side_by_side_and_go_back_at_once():
    memory = queue_memory(num_slots=2)
    sink, source = QueueSink(memory, 1, ()), QueueSource(memory, 2, (), slots_per_batch=3)
    put(sink, 1)
    put(sink, 2)
    assert source.take_batch() is None
    assert len(memory.free) == 2
    put(sink, 3)
    batch = source.take_batch()
    np.testing.assert_array_equal(batch["row"], np.tile(np.repeat([1, 2, 3], 3), (2, 1)))
    np.testing.assert_array_equal(batch["flag"], np.repeat([True, False, True], 3))
    assert batch["provenance"][:, PROVENANCE_SEQUENCE].tolist() == [1, 2, 3]


def test_reclaiming_frees_what_a_holder_had_and_nothing_else():
    memory = queue_memory(num_slots=5)
    dead, alive = QueueSink(memory, 1, ()), QueueSink(memory, 2, ())
    put(dead, 1)
    dead.reserve()
    dead.reserve()
    alive.reserve()
    for _ in range(2):
        memory.reclaim(1)
        assert len(memory.free) == 3
    batch = QueueSource(memory, 3, ()).take_batch()
    assert batch["row"][0, 0] == 1.0  # what it had committed still arrives
    memory.reclaim(3)  # its consumer, whose successor takes it again
    batch = QueueSource(memory, 4, ()).take_batch()
    assert batch["row"][0, 0] == 1.0
    assert len(memory.free) == 3


def test_a_slot_is_lost_only_when_every_live_node_has_ended_a_step_since():
    memory = queue_memory(num_slots=2)
    recovery = Recovery(Fabric(queues={"records": memory}))
    recovery.died(holder=1)
    index = memory.free.pop()  # by a process that is stopped, or died, before it notes the slot
    stopped, later = time.monotonic(), time.monotonic() + 60.0
    for _ in range(3):
        recovery.check([stopped, later])
        assert len(memory.free) == 1
    recovery.check([later, later])
    assert contents(memory.free) == [1 - index, index]
    memory.free.pop()
    for _ in range(3):  # nothing is looked for until the next death
        recovery.check([later, later])
    assert len(memory.free) == 1


@pytest.mark.parametrize("field", ["row", "flag", "provenance"])
def test_bytes_changed_after_the_commit_are_noticed(field):
    memory = queue_memory()
    put(QueueSink(memory, 1, ()), 1)
    memory.slots[0][field].reshape(-1).view(np.uint8)[0] ^= 1
    with pytest.raises(TornSlotError, match="slot 0"):
        QueueSource(memory, 2, ()).take_batch()


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_a_lagging_reader_is_that_many_updates_behind(lag):
    memory, vector = board_memory(history=6), np.zeros(5, np.float32)
    source = BoardSource(memory, extra_lag_updates=lag)
    seen = -1
    for version in range(20):
        publish(memory, version)
        version_read = source.pull(vector, newer_than=seen)
        seen = seen if version_read is None else version_read
        assert seen == max(0, version - lag)
        assert (vector == seen).all()


def test_a_lag_longer_than_the_history_reads_the_oldest_that_is_not_being_overwritten():
    memory, vector = board_memory(history=4), np.zeros(5, np.float32)
    for version in range(10):
        publish(memory, version)
    assert memory.pull(vector, newer_than=-1, extra_lag=100) == 7


def test_a_writer_that_died_in_the_midst_does_not_spoil_the_board():
    memory, vector = board_memory(), np.zeros(5, np.float32)
    publish(memory, 1)
    memory._guards[0, 0] |= 1  # as a kill between the first and the last line of publish leaves it
    memory._vectors[0, :2] = 99.0
    assert memory.pull(vector, newer_than=-1) == 1
    for version in (2, 3, 4):
        publish(memory, version)
        assert memory.pull(vector, newer_than=version - 1) == version
        assert (vector == version).all()


def test_a_vector_that_does_not_match_its_checksum_is_never_returned():
    memory, vector = board_memory(), np.zeros(5, np.float32)
    publish(memory, 1)
    memory._vectors[1, 3] = 99.0
    with pytest.raises(RuntimeError, match="'board' changed faster"):
        memory.pull(vector, newer_than=-1)


class Announced:
    """What a reader finds in the place of the newest count, one look after the other."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    def __getitem__(self, index: int) -> int:
        return self._counts.pop(0)


def test_a_version_is_not_read_before_it_is_announced(monkeypatch):
    """A reader was on its way to the second version when its buffer was filled with the fourth,
    while the third was still the newest announced: to read the fourth would be a step ahead, and
    the next look at the third a step back."""
    memory, vector = board_memory(), np.zeros(5, np.float32)
    for version in (1, 2, 3, 4):
        publish(memory, version)
    monkeypatch.setattr(memory, "_latest", Announced(2, 3))
    assert memory.pull(vector, newer_than=-1) == 3
    assert (vector == 3).all()
