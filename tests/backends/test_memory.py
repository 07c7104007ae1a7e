# SPDX-License-Identifier: Apache-2.0
"""Shared memory, FIFOs of slot numbers, and doorbells, within a process and between two."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from veldt.backends.shared_memory.memory import (
    Doorbell,
    IndexDeque,
    IndexPipe,
    SharedBlock,
)
from veldt.resources import ShortageError, available_bytes


def test_memory_outlives_its_descriptor_but_not_its_last_view() -> None:
    block = SharedBlock(8, "veldt-short-lived")
    view = block.array("int64", 1)
    block.close()
    block.close()
    view[0] = 7
    assert "veldt-short-lived" in open_memory()
    del block, view
    assert "veldt-short-lived" not in open_memory()


def open_memory() -> str:
    with open("/proc/self/maps") as maps:
        return maps.read()


def test_more_memory_than_there_is_names_amounts_and_remedy() -> None:
    available = available_bytes()
    assert 1 << 20 < available < 1 << 60
    message = r"'replay' needs 1,152,921,504,606,846,976 bytes .* [\d,]+ are available; lower the"
    with pytest.raises(ShortageError, match=message):
        SharedBlock(1 << 60, "replay")


@pytest.mark.parametrize("kind", [IndexPipe, IndexDeque])
def test_numbers_come_out_in_order_and_only_once(kind: type[IndexPipe | IndexDeque]) -> None:
    numbers, indices = [0, 7, 2**32 - 1, 7], kind()
    for number in numbers:
        indices.push(number)
    assert len(indices) == 4
    assert [indices.pop() for _ in numbers] == numbers
    assert indices.pop() is None
    assert len(indices) == 0
    indices.close()


def test_a_doorbell_rung_before_or_during_a_wait_ends_it() -> None:
    bell = Doorbell()
    bell.ring()
    bell.ring()
    started = time.monotonic()
    bell.wait(60.0)
    bell.wait(0.01)  # both were answered by one wait; this one times out
    ringer = threading.Timer(0.05, bell.ring)
    ringer.start()
    bell.wait(60.0)
    ringer.join()
    assert time.monotonic() - started < 30.0
    bell.close()


def push_and_ring(bell: Doorbell, pipe: IndexPipe, block: SharedBlock) -> None:
    block.array("int64", 1)[0] = 7
    pipe.push(42)
    bell.ring()


def test_memory_pipes_and_doorbells_reach_another_process(fork_server: None) -> None:
    bell, pipe, block = Doorbell(), IndexPipe(), SharedBlock(8)
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=push_and_ring, args=(bell, pipe, block))
    child.start()
    bell.wait(60.0)
    assert pipe.pop() == 42
    assert block.array("int64", 1)[0] == 7
    child.join()
    assert child.exitcode == 0
    for each in (bell, pipe, block):
        each.close()
