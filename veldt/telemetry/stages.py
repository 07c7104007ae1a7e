# SPDX-License-Identifier: Apache-2.0
"""Wall time by stage, in the words of a node's telemetry block."""

from __future__ import annotations

from time import perf_counter

from veldt.telemetry.spans import SpanRing


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

    def around(self, begin: float, left: float, returned: float, end: float) -> None:
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

    def around(self, begin: float, left: float, returned: float, end: float) -> None:
        super().add((end - begin) - (returned - left))
        self._ring.add(self._stage, begin, left)
        self._ring.add(self._stage, returned, end)
