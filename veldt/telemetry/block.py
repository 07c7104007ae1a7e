# SPDX-License-Identifier: Apache-2.0
"""The memory layout of one node's telemetry, the same for plain and shared memory.

Head, counters, stages, lag, ring of episodes, tail. The head holds what the writer stores last, the
tail what it stores first: a reader that copies head, body, tail in this order and finds the same
number in both has seen no write under way.
"""

from __future__ import annotations

import numpy as np

MAX_COUNTERS = 96
MAX_STAGES = 24
MAX_NAME_BYTES = 39
EPISODE_RING = 2048
LAG_BINS = 128

_NAME = MAX_NAME_BYTES + 1  # zero-padded; the last byte is the flag

NUM_COUNTERS, NUM_STAGES, EPISODES_DONE, LAGS_DONE = range(4)
EPISODES_BEGUN, LAGS_BEGUN = range(2)
LAG_SUM, LAG_MIN, LAG_MAX = range(3)

COUNTERS_AT = 64
COUNTER_NAMES_AT = COUNTERS_AT + MAX_COUNTERS * 8
STAGES_AT = COUNTER_NAMES_AT + MAX_COUNTERS * _NAME
STAGE_NAMES_AT = STAGES_AT + MAX_STAGES * 16
LAG_AT = STAGE_NAMES_AT + MAX_STAGES * _NAME
HISTOGRAM_AT = LAG_AT + 64
RETURNS_AT = HISTOGRAM_AT + LAG_BINS * 8
LENGTHS_AT = RETURNS_AT + EPISODE_RING * 8
TAIL_AT = LENGTHS_AT + EPISODE_RING * 8
TELEMETRY_BYTES = -(-(TAIL_AT + 64) // 4096) * 4096


class Names:
    """Names registered in the block: written before the number that makes them visible."""

    def __init__(
        self, memory: memoryview, at: int, limit: int, head: memoryview, word: int
    ) -> None:
        self._memory, self._at, self._limit = memory, at, limit
        self._head, self._word = head, word

    def index_of(self, name: str, flag: bool = False) -> int:
        """The index of `name`, registered now with `flag` if it is new."""
        encoded = name.encode()
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise ValueError(f"'{name}' must have 1 to {MAX_NAME_BYTES} bytes")
        known = self._head[self._word]
        record = encoded.ljust(MAX_NAME_BYTES, b"\0") + bytes([flag])
        for index in range(known):
            if self._record(index)[:MAX_NAME_BYTES] == record[:MAX_NAME_BYTES]:
                return index
        if known == self._limit:
            raise ValueError(f"no room for '{name}': a node has {self._limit} names of this sort")
        self._record(known)[:] = record
        self._head[self._word] = known + 1
        return known

    def _record(self, index: int) -> memoryview:
        start = self._at + index * _NAME
        return self._memory[start : start + _NAME]


def arrays(block: memoryview) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Histogram, ring of returns and ring of lengths as views."""
    return (
        np.frombuffer(block, np.int64, LAG_BINS, HISTOGRAM_AT),
        np.frombuffer(block, np.float64, EPISODE_RING, RETURNS_AT),
        np.frombuffer(block, np.int64, EPISODE_RING, LENGTHS_AT),
    )


def read_names(view: memoryview, at: int, known: int, limit: int) -> list[tuple[str, bool]]:
    """Names with their flags, in order of registration; bytes that are no name are replaced."""
    known = min(max(known, 0), limit)
    records = (bytes(view[i : i + _NAME]) for i in range(at, at + known * _NAME, _NAME))
    return [
        (record[:-1].partition(b"\0")[0].decode(errors="replace"), record[-1] != 0)
        for record in records
    ]
