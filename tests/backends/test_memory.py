# SPDX-License-Identifier: Apache-2.0
"""Blocks of memory: zeroed, shared where they should be, and an error instead of a SIGBUS."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

from veldt.backends.shared_memory.memory import Block, PlainBlock, SharedBlock
from veldt.resources import ShortageError, available_bytes


@pytest.mark.parametrize("kind", [PlainBlock, SharedBlock])
def test_arrays_are_zeroed_views_of_the_same_memory(kind: type[Block]) -> None:
    block = kind(256)
    whole, tail = block.array("uint8", 256), block.array("float32", 4, offset=240)
    assert not whole.any()
    tail[:] = 1.0
    assert whole[240:].view(np.float32).tolist() == [1.0] * 4
    block.memory[240:244] = b"\0\0\0\0"
    assert tail[0] == 0.0
    block.close()


def write_its_process_id(block: SharedBlock) -> None:
    block.array("int64", 1)[0] = os.getpid()


def test_another_process_writes_what_this_one_reads(fork_server: None) -> None:
    block = SharedBlock(8)
    child = multiprocessing.get_context("forkserver").Process(
        target=write_its_process_id, args=(block,)
    )
    child.start()
    child.join()
    assert block.array("int64", 1)[0] == child.pid
    block.close()


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
