# SPDX-License-Identifier: Apache-2.0
"""Rates between two moments of a run, and the one definition of where its steady state begins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SETTLE_SECONDS = 5.0
SETTLE_SHARE = 0.1
_RECENT_SECONDS = 2.0


def steady_start(seconds: Sequence[float], updates: Sequence[float]) -> int:
    """Which moment steady rates are counted from: the first one 5 seconds, or a tenth of the time
    if that is shorter, after the first update.

    Updates that were there from the beginning come from a checkpoint. Without others it is the
    first moment of all."""
    end = seconds[-1]
    learning = [index for index, made in enumerate(updates) if made > updates[0]]
    if not learning or seconds[learning[0]] == end:
        return 0
    begun = seconds[learning[0]]
    settled = begun + min(SETTLE_SECONDS, SETTLE_SHARE * (end - begun))
    return next((i for i in learning if settled <= seconds[i] < end), learning[0])


def steady_rate(rows: Sequence[Mapping[str, Any]], counter: str) -> float:
    """Increase of a counter per second in steady state, from lines of metrics.jsonl; or NaN."""
    seconds = [row["time"] for row in rows]
    start = steady_start(seconds, [row["updates"] for row in rows]) if rows else 0
    if not rows or seconds[start] == seconds[-1]:
        return math.nan
    counts = [row.get(counter, 0) for row in (rows[start], rows[-1])]
    if None in counts:
        return math.nan
    return (counts[1] - counts[0]) / (seconds[-1] - seconds[start])


@dataclass(frozen=True)
class Sample:
    """What rates need of one moment."""

    now: float
    totals: dict[str, float]
    """Counters of the whole run."""
    by_kind: dict[str, dict[str, float]]
    """Counters added up over the nodes of each kind."""
    stage_seconds: dict[str, dict[str, float]]
    """Seconds by node and stage."""


@dataclass(frozen=True)
class Span:
    """What happened between two samples."""

    start: Sample
    end: Sample

    @property
    def seconds(self) -> float:
        return self.end.now - self.start.now

    def rate(self, counter: str) -> float:
        """Increase of a total per second; 0 over no time."""
        gained = self.end.totals.get(counter, 0.0) - self.start.totals.get(counter, 0.0)
        return gained / self.seconds if self.seconds > 0 else 0.0

    def kind_rates(self) -> dict[str, dict[str, float]]:
        """Increase per second by kind of node and counter; empty over no time."""
        return {
            kind: _increase(self.start.by_kind.get(kind, {}), after, self.seconds)
            for kind, after in self.end.by_kind.items()
            if self.seconds > 0
        }

    def stage_shares(self, node: str) -> dict[str, float]:
        """Share of wall time by stage of one node; empty over no time."""
        if self.seconds <= 0:
            return {}
        before = self.start.stage_seconds.get(node, {})
        return _increase(before, self.end.stage_seconds.get(node, {}), self.seconds)


_NOTHING = Span(Sample(0.0, {}, {}, {}), Sample(0.0, {}, {}, {}))


def _increase(
    before: dict[str, float], after: dict[str, float], seconds: float
) -> dict[str, float]:
    return {name: (value - before.get(name, 0.0)) / seconds for name, value in after.items()}


class Samples:
    """The samples of a run that rates need: the last moments, the first, and those among which
    steady state may begin."""

    def __init__(self) -> None:
        self._recent: deque[Sample] = deque()
        self._settling: list[Sample] = []
        """The first sample, and those of SETTLE_SECONDS from the first update on."""

    def add(self, sample: Sample) -> None:
        self._recent.append(sample)
        while len(self._recent) > 2 and sample.now - self._recent[1].now >= _RECENT_SECONDS:
            self._recent.popleft()
        settling = self._settling
        if len(settling) > 1:
            is_kept = settling[-1].now - settling[1].now < SETTLE_SECONDS
        else:
            is_kept = not settling or _updates(sample) > _updates(settling[0])
        if is_kept:
            settling.append(sample)

    @property
    def recent(self) -> Span:
        """The last two seconds or so."""
        return Span(self._recent[0], self._recent[-1]) if self._recent else _NOTHING

    @property
    def steady(self) -> Span:
        """From when the run settled to the last sample."""
        if not self._recent:
            return _NOTHING
        samples = [*self._settling, self._recent[-1]]
        seconds, updates = [each.now for each in samples], [_updates(each) for each in samples]
        return Span(samples[steady_start(seconds, updates)], samples[-1])


def _updates(sample: Sample) -> float:
    return sample.totals.get("updates", 0.0)
