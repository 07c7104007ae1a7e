# SPDX-License-Identifier: Apache-2.0
"""One node's counters, stage times, episodes and policy lag in a fixed block of memory.

The node is the only writer and takes no lock; any number of readers copy the block. Zeroed memory
is an empty block, and a restarted node that attaches to its old block continues there.

The head of a block is written last and its tail first. A reader that copies head, body and tail in
this order and finds the same number in both therefore has a consistent copy. For a timeline, a ring
buffer behind the block records when each stage began and ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

MAX_COUNTERS = 96
MAX_STAGES = 24
MAX_INFOS = 32
MAX_NAME_BYTES = 39
EPISODE_SLOTS = 2048
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
        ("returns", "f8", EPISODE_SLOTS),
        ("lengths", "i8", EPISODE_SLOTS),
        ("infos", "f8", 2 * MAX_INFOS),
        ("info_names", NAME, MAX_INFOS),
        ("tail", "i8", 8),
    ]
)
HEAD_BYTES = BLOCK["head"].itemsize
TAIL_AT = BLOCK.itemsize - BLOCK["tail"].itemsize
TELEMETRY_BYTES = -(-BLOCK.itemsize // 4096) * 4096

_COPY_ATTEMPTS = 8
_PAUSE_SECONDS = 0.001  # lets a descheduled writer finish

_WRITTEN, _CLOSED = range(2)
"""Words of the head of the span buffer."""
_SPAN_HEAD_BYTES = 64
_BYTES_PER_SPAN = 3 * 8
_SPANS_PER_SECOND = 12_000  # three times what the busiest actors write
_FEWEST_SPANS, _MOST_SPANS = 1 << 13, 1 << 17

_log = logging.getLogger(__name__)


def fields_of(memory: memoryview | bytearray | bytes) -> np.ndarray:
    """The block as one record whose fields are views of the memory.

    `.data` of a field accesses single numbers several times faster than NumPy."""
    return np.ndarray((), BLOCK, memory)


def index_of(name: str, records: np.ndarray, head: Any, word: int, flag: bool = False) -> int:
    """The index of a name in a table of the block, registered now with `flag` if it is new."""
    encoded = name.encode()
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"'{name}' must have 1 to {MAX_NAME_BYTES} bytes")
    known = head[word]
    same = np.flatnonzero(records["text"][:known] == encoded)
    if same.size:
        return int(same[0])
    if known == records.size:
        raise ValueError(f"no room for '{name}': a node has {known} names of this sort")
    records[known] = (encoded, flag)
    head[word] = known + 1  # makes the name visible
    return known


def read_names(records: np.ndarray, known: int) -> list[tuple[str, bool]]:
    """Names with their flags, in order of registration."""
    return [(text.decode(), flag != 0) for text, flag in records[:known].tolist()]


def traffic_name(channel: str, is_writing: bool) -> str:
    """Name of the counter of items that a node sends to or takes from these channels."""
    return f"{'sent' if is_writing else 'taken'}.{channel}"[:MAX_NAME_BYTES]


class Counter:
    """A number that the node sets or adds to."""

    __slots__ = ("_index", "_values")

    def __init__(self, values: memoryview[float], index: int) -> None:
        self._values = values
        self._index = index

    def add(self, n: float = 1) -> None:
        self._values[self._index] += n

    def set(self, x: float) -> None:
        self._values[self._index] = x

    @property
    def value(self) -> float:
        return self._values[self._index]


@dataclass(frozen=True)
class Spans:
    """Copied from a span buffer, in the order they ended; seconds of the time of day."""

    stages: tuple[str, ...]
    """Names, by index."""
    index: np.ndarray
    start: np.ndarray
    end: np.ndarray


def span_bytes(seconds: float) -> int:
    """Size of a buffer for the spans of so many seconds; 0 for 0 seconds."""
    if not seconds:
        return 0
    spans = min(_MOST_SPANS, max(_FEWEST_SPANS, int(seconds * _SPANS_PER_SECOND)))
    return _SPAN_HEAD_BYTES + spans * _BYTES_PER_SPAN


class SpanBuffer:
    """Ring buffer of (stage, start, end) over zeroed memory, counted after each is written."""

    __slots__ = ("_capacity", "_head", "_numbers")

    def __init__(self, memory: memoryview) -> None:
        self._capacity = (memory.nbytes - _SPAN_HEAD_BYTES) // _BYTES_PER_SPAN
        end = _SPAN_HEAD_BYTES + self._capacity * _BYTES_PER_SPAN
        self._head = memory[:_SPAN_HEAD_BYTES].cast("q")
        self._numbers = memory[_SPAN_HEAD_BYTES:end].cast("d")

    def add(self, stage: int, start: float, end: float) -> None:
        head, numbers = self._head, self._numbers
        if head[_CLOSED]:
            return
        written = head[_WRITTEN]
        place = 3 * (written % self._capacity)
        numbers[place], numbers[place + 1], numbers[place + 2] = stage, start, end
        head[_WRITTEN] = written + 1

    def close(self) -> None:
        """Stop recording."""
        self._head[_CLOSED] = 1

    def spans(self, names: list[str]) -> Spans:
        """The recorded spans, in time of day because `perf_counter` differs between machines."""
        written = self._head[_WRITTEN]
        # The node may overwrite the oldest span during this copy, so that one is left out.
        oldest = max(0, written - self._capacity + 1)
        places = np.arange(oldest, written) % self._capacity
        stages, start, end = np.asarray(self._numbers).reshape(-1, 3)[places].T
        offset = time.time() - perf_counter()
        return Spans(tuple(names), stages.astype(np.int64), start + offset, end + offset)


class Stage:
    """Wall time and number of passes of one stage: `with stage: ...`, which does not nest."""

    __slots__ = ("_buffer", "_index", "_stage", "_started", "_values")

    def __init__(
        self, values: memoryview[float], index: int, buffer: SpanBuffer | None = None
    ) -> None:
        self._values = values
        self._stage, self._index = index, 2 * index
        self._buffer = buffer
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
        if self._buffer is not None:
            end = perf_counter()
            self._buffer.add(self._stage, end - seconds, end)

    @property
    def seconds(self) -> float:
        return self._values[self._index]

    @property
    def count(self) -> int:
        return int(self._values[self._index + 1])


class NodeTelemetry:
    """One node's counters over a fixed block of memory, plain or shared between processes.

    Only the node itself writes; anything may call `snapshot`, `to_bytes` and `take_spans`.

    Args:
        memory: TELEMETRY_BYTES, zeroed or left by an earlier incarnation; more bytes record spans.
            None allocates a block.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        block = memoryview(bytearray(TELEMETRY_BYTES) if memory is None else memory).cast("B")
        self._memory, rest = block[:TELEMETRY_BYTES], block[TELEMETRY_BYTES:]
        self._span_buffer = SpanBuffer(rest) if rest.nbytes else None
        fields = fields_of(block)
        self._head, self._tail = fields["head"].data, fields["tail"].data
        self._lag = fields["lag"].data
        self._counter_values: memoryview[Any] = fields["counters"].data
        self._stage_values: memoryview[Any] = fields["stages"].data
        self._histogram = fields["histogram"]
        self._returns, self._lengths = fields["returns"], fields["lengths"]
        self._counter_names = fields["counter_names"]
        self._stage_names, self._info_names = fields["stage_names"], fields["info_names"]
        self._info_values: memoryview[Any] = fields["infos"].data
        self._infos: dict[str, int] = {}
        self._has_warned = False
        self._counters: dict[str, Counter] = {}
        self._stages: dict[str, Stage] = {}

    @property
    def memory(self) -> memoryview:
        """The whole block; writing to it is for restoring a checkpoint only."""
        return self._memory

    def counter(self, name: str) -> Counter:
        """The counter of this name; a run shows the sum over its nodes. Same name, same counter."""
        return self._counters.get(name) or self._register(name, gauge=False)

    def gauge(self, name: str) -> Counter:
        """A counter that holds a level (a loss, an epsilon); a run shows the mean over nodes."""
        return self._counters.get(name) or self._register(name, gauge=True)

    def _register(self, name: str, gauge: bool) -> Counter:
        index = index_of(name, self._counter_names, self._head, NUM_COUNTERS, gauge)
        self._counters[name] = found = Counter(self._counter_values, index)
        return found

    def value(self, name: str) -> float:
        """Value of a counter; 0 if this node does not have it."""
        found = self._counters.get(name)
        return 0.0 if found is None else found.value

    def stage(self, name: str) -> Stage:
        """The stage of this name; time under "wait" counts as idle, all else as busy."""
        found = self._stages.get(name)
        if found is None:
            index = index_of(name, self._stage_names, self._head, NUM_STAGES)
            self._stages[name] = found = Stage(self._stage_values, index, self._span_buffer)
        return found

    def episode(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Push finished episodes; the newest EPISODE_SLOTS of them stay readable."""
        finished = len(returns)
        if not finished:
            return
        total = self._head[EPISODES_DONE] + finished
        self._tail[EPISODES_BEGUN] = total
        kept = min(finished, EPISODE_SLOTS)
        places = np.arange(total - kept, total) % EPISODE_SLOTS
        self._returns[places] = returns[-kept:]
        self._lengths[places] = lengths[-kept:]
        self._head[EPISODES_DONE] = total

    def episode_info(self, infos: Mapping[str, Sequence[float]]) -> None:
        """Add values that finished episodes reported, by name; at most MAX_INFOS names are kept."""
        total = self._head[INFOS_DONE] + 1
        self._tail[INFOS_BEGUN] = total
        for name, values in infos.items():
            place = self._info_place(name)
            if place is not None:
                self._info_values[2 * place] += sum(values)
                self._info_values[2 * place + 1] += len(values)
        self._head[INFOS_DONE] = total

    def _info_place(self, name: str) -> int | None:
        name = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        if name not in self._infos:
            try:
                self._infos[name] = index_of(name, self._info_names, self._head, NUM_INFOS)
            except ValueError as error:  # an empty name, or too many of them
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning("an environment's info is recorded in part: %s", error)
                return None
        return self._infos[name]

    def lag(self, lags: np.ndarray) -> None:
        """Count the policy lag of rows, in updates."""
        rows = np.asarray(lags, dtype=np.int64).ravel()
        if not rows.size:
            return
        lowest, highest, words = int(rows.min()), int(rows.max()), self._lag
        before = self._head[LAGS_DONE]
        self._tail[LAGS_BEGUN] = before + rows.size
        words[LAG_MIN] = min(words[LAG_MIN], lowest) if before else lowest
        words[LAG_MAX] = max(words[LAG_MAX], highest) if before else highest
        words[LAG_SUM] += int(rows.sum())
        self._histogram += np.bincount(np.clip(rows, 0, LAG_BINS - 1), minlength=LAG_BINS)
        self._head[LAGS_DONE] = before + rows.size

    def to_bytes(self) -> bytes:
        """A copy of the block: for NodeSnapshot.from_bytes, or for a successor to start from."""
        block = bytearray()
        for attempt in range(_COPY_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            head = bytes(self._memory[:HEAD_BYTES])
            block = bytearray(self._memory)
            block[:HEAD_BYTES] = head
            block[TAIL_AT:] = self._memory[TAIL_AT:]
            copied = fields_of(block)
            done, begun = copied["head"], copied["tail"]
            if (done[LAGS_DONE], done[INFOS_DONE]) == (begun[LAGS_BEGUN], begun[INFOS_BEGUN]):
                break
        return bytes(block)

    def take_spans(self) -> Spans:
        """Stop recording and return the recorded spans."""
        if self._span_buffer is None:
            return Spans((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        self._span_buffer.close()
        names = read_names(self._stage_names, self._head[NUM_STAGES])
        return self._span_buffer.spans([name for name, _ in names])

    def snapshot(self) -> NodeSnapshot:
        """A copy; consistent unless the node died or wrote during every attempt."""
        return NodeSnapshot.from_bytes(self.to_bytes())


@dataclass
class LagSummary:
    """Policy lag over rows. `histogram` counts lags 0..126 exactly; its last bin is 127 or more."""

    count: int = 0
    min: int = 0
    mean: float = 0.0
    max: int = 0
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(LAG_BINS, np.int64), repr=False)

    @staticmethod
    def merge(summaries: list[LagSummary]) -> LagSummary:
        """The summary of all rows together."""
        seen = [summary for summary in summaries if summary.count] or [LagSummary()]
        count = sum(summary.count for summary in seen)
        return LagSummary(
            count=count,
            min=min(summary.min for summary in seen),
            mean=sum(summary.mean * summary.count for summary in seen) / max(count, 1),
            max=max(summary.max for summary in seen),
            histogram=np.sum([summary.histogram for summary in seen], axis=0),
        )


@dataclass
class NodeSnapshot:
    """A node's counters at one moment."""

    counters: dict[str, float]
    gauges: frozenset[str]
    """Names in `counters` that are levels: averaged over nodes, not added up."""
    stages: dict[str, tuple[float, int]]
    """Seconds and number of passes by stage."""
    episodes_total: int
    lag: LagSummary
    _first_episode: int
    _returns: np.ndarray
    _lengths: np.ndarray
    infos: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sum and number of the values that finished episodes reported, by name."""

    def new_episodes(self, since: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths of the episodes from number `since` on that are still stored."""
        first = max(since, self._first_episode)
        places = np.arange(first, max(first, self.episodes_total)) % EPISODE_SLOTS
        return self._returns[places], self._lengths[places]

    @staticmethod
    def from_bytes(block: bytes) -> NodeSnapshot:
        """Read a copied block."""
        fields = fields_of(block)
        head, tail = fields["head"].tolist(), fields["tail"].tolist()
        counters = read_names(fields["counter_names"], head[NUM_COUNTERS])
        values, total = fields["counters"].tolist(), head[EPISODES_DONE]
        words, rows = fields["lag"].tolist(), int(fields["histogram"].sum())
        return NodeSnapshot(
            counters={name: values[index] for index, (name, _) in enumerate(counters)},
            gauges=frozenset(name for name, is_gauge in counters if is_gauge),
            stages=_sums(fields["stages"], fields["stage_names"], head[NUM_STAGES]),
            episodes_total=total,
            lag=LagSummary(
                count=rows,
                min=words[LAG_MIN],
                mean=words[LAG_SUM] / max(rows, 1),
                max=words[LAG_MAX],
                histogram=fields["histogram"],
            ),
            # Episodes begun but not done may already have overwritten the oldest ones.
            _first_episode=max(0, max(total, tail[EPISODES_BEGUN]) - EPISODE_SLOTS),
            _returns=fields["returns"],
            _lengths=fields["lengths"],
            infos=_sums(fields["infos"], fields["info_names"], head[NUM_INFOS]),
        )


def _sums(values: np.ndarray, names: np.ndarray, known: int) -> dict[str, tuple[float, int]]:
    """Sum and count by name, from a field of such pairs."""
    pairs = zip(read_names(names, known), values.reshape(-1, 2).tolist(), strict=False)
    return {name: (total, int(count)) for (name, _), (total, count) in pairs}
