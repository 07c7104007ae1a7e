# SPDX-License-Identifier: Apache-2.0
"""Wall time by stage of a node and, for a timeline, when each pass began and ended.

Passes are kept in a ring buffer behind the node's counters, allocated only for runs that record a
timeline. The node is the only writer; it writes a span before the number that makes it visible.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from time import perf_counter

import numpy as np

_WRITTEN, _CLOSED = range(2)
"""Words of the head."""
_HEAD_BYTES = 64
_SPAN_BYTES = 8 + 8 + 1
_SPANS_PER_SECOND = 12_000  # three times what the busiest actors write
_FEWEST_SPANS, _MOST_SPANS = 1 << 13, 1 << 17


def ring_bytes(seconds: float) -> int:
    """Room for what a node does in so many seconds; 0 seconds need none."""
    if not seconds:
        return 0
    spans = min(_MOST_SPANS, max(_FEWEST_SPANS, int(seconds * _SPANS_PER_SECOND)))
    return _HEAD_BYTES + spans // 8 * 8 * _SPAN_BYTES


def clock_offset() -> float:
    """Seconds to add to this machine's clock of spans to get the time of day, which machines agree
    on about as well as their clocks do."""
    return time.time() - time.perf_counter()


@dataclass(frozen=True)
class Spans:
    """Copied out of a ring, in the order they ended; seconds of the time of day."""

    stages: tuple[str, ...]
    """Names, by index."""
    index: np.ndarray
    start: np.ndarray
    end: np.ndarray


class SpanRing:
    """The ring over zeroed memory."""

    __slots__ = ("_capacity", "_ends", "_head", "_stages", "_starts")

    def __init__(self, memory: memoryview) -> None:
        spans = (memory.nbytes - _HEAD_BYTES) // _SPAN_BYTES // 8 * 8
        first = _HEAD_BYTES + 8 * spans
        self._capacity = spans
        self._head = memory[:_HEAD_BYTES].cast("q")
        self._starts = memory[_HEAD_BYTES:first].cast("d")
        self._ends = memory[first : first + 8 * spans].cast("d")
        self._stages = memory[first + 8 * spans : first + 9 * spans]

    def add(self, stage: int, start: float, end: float) -> None:
        head = self._head
        if head[_CLOSED]:
            return
        written = head[_WRITTEN]
        place = written % self._capacity
        self._stages[place], self._starts[place], self._ends[place] = stage, start, end
        head[_WRITTEN] = written + 1

    def close(self) -> None:
        """From now on nothing is recorded."""
        self._head[_CLOSED] = 1

    def spans(self, names: list[str]) -> Spans:
        """What the ring holds, by this machine's clock now."""
        written = self._head[_WRITTEN]
        # The node may write on while this copies: the span it writes over is left out.
        oldest = max(0, written - self._capacity + 1)
        places = np.arange(oldest, written) % self._capacity
        start, end = np.asarray(self._starts)[places], np.asarray(self._ends)[places]
        index = np.asarray(self._stages)[places].astype(np.int64)
        known, offset = index < len(names), clock_offset()
        return Spans(tuple(names), index[known], start[known] + offset, end[known] + offset)


class Stage:
    """Wall time and number of passes of one stage: `with stage: ...`. It does not nest."""

    __slots__ = ("_index", "_started", "_values")

    def __init__(self, values: memoryview[float], index: int) -> None:
        self._values = values
        self._index = 2 * index
        self._started = 0.0

    def __enter__(self) -> Stage:
        self._started = perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.add(perf_counter() - self._started)

    def add(self, seconds: float) -> None:
        """Count one pass that took `seconds`."""
        values, index = self._values, self._index
        values[index] += seconds
        values[index + 1] += 1.0

    def add_except(self, begin: float, left: float, returned: float, end: float) -> None:
        """Count one pass from `begin` to `end`, less the time from `left` to `returned`."""
        self.add((end - begin) - (returned - left))

    @property
    def seconds(self) -> float:
        return self._values[self._index]

    @property
    def count(self) -> int:
        return int(self._values[self._index + 1])


class RecordedStage(Stage):
    """A stage whose passes are also kept one by one."""

    __slots__ = ("_ring", "_stage")

    def __init__(self, values: memoryview[float], index: int, ring: SpanRing) -> None:
        super().__init__(values, index)
        self._stage, self._ring = index, ring

    def add(self, seconds: float) -> None:
        end = perf_counter()
        values, index = self._values, self._index
        values[index] += seconds
        values[index + 1] += 1.0
        self._ring.add(self._stage, end - seconds, end)

    def add_except(self, begin: float, left: float, returned: float, end: float) -> None:
        super().add((end - begin) - (returned - left))
        self._ring.add(self._stage, begin, left)
        self._ring.add(self._stage, returned, end)
