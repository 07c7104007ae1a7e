# SPDX-License-Identifier: Apache-2.0
"""The memory layout of one node's telemetry, the same for plain and shared memory.

The head holds what the writer stores last, the tail what it stores first: a reader that copies
head, body, tail in this order and finds the same number in both has seen no write under way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_COUNTERS = 96
MAX_STAGES = 24
MAX_INFOS = 32
MAX_NAME_BYTES = 39
EPISODE_RING = 2048
LAG_BINS = 128

NUM_COUNTERS, NUM_STAGES, EPISODES_DONE, LAGS_DONE, NUM_INFOS, INFOS_DONE = range(6)
"""Words of the head."""
EPISODES_BEGUN, LAGS_BEGUN, INFOS_BEGUN = range(3)
"""Words of the tail."""
LAG_SUM, LAG_MIN, LAG_MAX = range(3)
"""Words of the lag."""

NAME = np.dtype([("text", f"S{MAX_NAME_BYTES}"), ("flag", "u1")])
BLOCK = np.dtype(
    [
        ("head", "i8", 8),
        ("counters", "f8", MAX_COUNTERS),
        ("counter_names", NAME, MAX_COUNTERS),
        ("stages", "f8", 2 * MAX_STAGES),
        ("stage_names", NAME, MAX_STAGES),
        ("lag", "i8", 8),
        ("histogram", "i8", LAG_BINS),
        ("returns", "f8", EPISODE_RING),
        ("lengths", "i8", EPISODE_RING),
        ("infos", "f8", 2 * MAX_INFOS),
        ("info_names", NAME, MAX_INFOS),
        ("tail", "i8", 8),
    ]
)
HEAD_BYTES = BLOCK["head"].itemsize
TAIL_AT = BLOCK.itemsize - BLOCK["tail"].itemsize
TELEMETRY_BYTES = -(-BLOCK.itemsize // 4096) * 4096


def fields_of(memory: memoryview | bytearray | bytes) -> np.ndarray:
    """The block as one record whose fields are views of the memory."""
    size = memoryview(memory).nbytes
    if size < TELEMETRY_BYTES:
        raise ValueError(f"a telemetry block has {TELEMETRY_BYTES} bytes, not {size}")
    return np.ndarray((), BLOCK, memory)


def numbers(array: np.ndarray) -> memoryview[Any]:
    """The array as a view whose single numbers are read and written several times faster."""
    return array.data


class Names:
    """Names registered in the block: written before the number that makes them visible."""

    def __init__(self, records: np.ndarray, head: Any, word: int) -> None:
        self._records, self._head, self._word = records, head, word

    def index_of(self, name: str, flag: bool = False) -> int:
        """The index of `name`, registered now with `flag` if it is new."""
        encoded = name.encode()
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise ValueError(f"'{name}' must have 1 to {MAX_NAME_BYTES} bytes")
        known = self._head[self._word]
        same = np.flatnonzero(self._records["text"][:known] == encoded)
        if same.size:
            return int(same[0])
        if known == self._records.size:
            raise ValueError(f"no room for '{name}': a node has {known} names of this sort")
        self._records[known] = (encoded, flag)
        self._head[self._word] = known + 1
        return known


def read_names(records: np.ndarray, known: int) -> list[tuple[str, bool]]:
    """Names with their flags, in order of registration; bytes that are no name are replaced."""
    return [
        (text.partition(b"\0")[0].decode(errors="replace"), flag != 0)
        for text, flag in records[: max(known, 0)].tolist()
    ]
