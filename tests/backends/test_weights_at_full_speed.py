# SPDX-License-Identifier: Apache-2.0
"""One process writes weights as fast as it can and four read them: no mix of two versions, and no
step back."""

from __future__ import annotations

import os
import time
from collections import deque

import numpy as np
import pytest

from veldt.backends.process.forkserver import server_context
from veldt.backends.shared_memory.channels import BoardMemory
from veldt.backends.shared_memory.memory import SharedBlock
from veldt.topology import BoardSpec
from veldt.types import Parameters

SECONDS = float(os.environ.get("VELDT_BOARD_SECONDS", 3.0))
READERS, SIZE = 4, 20_000
READS, MIXED, BACKWARDS, GIVEN_UP, P99_US = range(5)


def rows_of(control: SharedBlock) -> np.ndarray:
    return control.array("int64", 1 + READERS * 5)[1:].reshape(READERS, 5)


def read_for_ever(board: BoardMemory, control: SharedBlock, number: int) -> None:
    """Until the first byte of `control` is set. Figures go into its row."""
    figures = rows_of(control)[number]
    vector, newest = np.empty(SIZE, np.float32), -1
    times: deque[float] = deque(maxlen=100_000)  # of ten minutes, all would fill the memory
    while not control.memory[0]:
        began = time.perf_counter()
        try:
            version = board.pull(vector, newer_than=-1)
        except RuntimeError:  # starved: it is told so instead of reading for ever
            figures[GIVEN_UP] += 1
            continue
        times.append(time.perf_counter() - began)
        assert version is not None
        figures[READS] += 1
        figures[MIXED] += not (vector == np.float32(version % 2**20)).all()
        figures[BACKWARDS] += version < newest
        newest = version
    figures[P99_US] = int(1e6 * np.quantile(times, 0.99))


@pytest.mark.usefixtures("fork_server")
def test_four_readers_never_see_a_mix_or_a_step_back() -> None:
    spec = BoardSpec("weights", SIZE, history=2)
    board = BoardMemory(spec, SharedBlock(BoardMemory.nbytes(spec)))
    board.publish(Parameters(np.zeros(SIZE, np.float32), 0))
    control = SharedBlock(8 + READERS * 5 * 8)
    readers = [
        server_context().Process(target=read_for_ever, args=(board, control, number))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    figures = rows_of(control)
    vector, version = np.empty(SIZE, np.float32), 0
    deadline = time.monotonic() + 60
    while not figures[:, READS].all():
        assert time.monotonic() < deadline, "a reader did not start"
        time.sleep(0.01)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        version += 1
        vector[:] = version % 2**20
        board.publish(Parameters(vector, version))
    control.memory[0] = 1
    for reader in readers:
        reader.join(20)
        assert reader.exitcode == 0
    reads = int(figures[:, READS].sum())
    assert figures[:, MIXED].sum() == 0
    assert figures[:, BACKWARDS].sum() == 0
    assert reads > 1000
    assert version > 1000
