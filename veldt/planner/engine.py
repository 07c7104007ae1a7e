# SPDX-License-Identifier: Apache-2.0
"""A small discrete-event simulator: processes are generators that ask for a core, for time or for a
signal. Cores serve the most urgent first and do not interrupt: what runs is short."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

Process = Generator["Work | Sleep | Signal", None, None]


@dataclass(frozen=True)
class Work:
    """So many seconds on a core; lower urgencies go first, as with niceness."""

    seconds: float
    owner: str
    urgency: int = 0


@dataclass(frozen=True)
class Sleep:
    """Time that no core is needed for."""

    seconds: float


@dataclass(eq=False)
class Signal:
    """Processes that wait until it is fired."""

    waiting: list[Process] = field(default_factory=list)


class Engine:
    """Runs processes on `cores` until some moment or number of events."""

    def __init__(self, cores: int) -> None:
        self.now = 0.0
        self.events = 0
        self.busy: dict[str, float] = {}
        """Seconds on a core, by owner, since `forget`."""
        self._free, self._number = cores, 0
        self._later: list[tuple[float, int, Process, bool]] = []
        self._queue: list[tuple[int, int, Process, Work]] = []
        self._ready: deque[Process] = deque()

    def spawn(self, process: Process) -> None:
        self._ready.append(process)

    def fire(self, signal: Signal) -> None:
        """Wake all that wait for it, at this moment."""
        self._ready.extend(signal.waiting)
        signal.waiting.clear()

    def forget(self) -> None:
        self.busy.clear()

    def run(self, until: float, most_events: int) -> None:
        """Go on until `until` seconds, or until so many events have happened in all."""
        while self.events < most_events:
            while self._ready:
                self._resume(self._ready.popleft())
            self._start_work()
            if not self._later or self._later[0][0] > until:
                self.now = max(self.now, min(until, self.now if not self._later else until))
                return
            self.now, _, process, frees = heapq.heappop(self._later)
            self._free += frees
            self.events += 1
            self._ready.append(process)

    def _resume(self, process: Process) -> None:
        try:
            asked = next(process)
        except StopIteration:
            return
        if isinstance(asked, Signal):
            asked.waiting.append(process)
        elif isinstance(asked, Sleep):
            self._at(asked.seconds, process, frees=False)
        else:
            self._number += 1
            heapq.heappush(self._queue, (asked.urgency, self._number, process, asked))

    def _start_work(self) -> None:
        while self._queue and self._free:
            _, _, process, work = heapq.heappop(self._queue)
            self._free -= 1
            self.busy[work.owner] = self.busy.get(work.owner, 0.0) + work.seconds
            self._at(work.seconds, process, frees=True)

    def _at(self, seconds: float, process: Process, frees: bool) -> None:
        self._number += 1
        heapq.heappush(self._later, (self.now + seconds, self._number, process, frees))
