# SPDX-License-Identifier: Apache-2.0
"""How many threads a learner computes with while other programs want the cores, too.

Threads that share one computation wait for each other many times in it, and the libraries below
torch spin while they do. When one of them loses its core the others burn theirs until it comes
back: beside another learner with two threads, one with two threads on two cores took thirty times
as long for an update as alone, and with one thread half as long again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from veldt.resources import load, usable_cores

_LOOK_SECONDS = 0.5
_MOST_WAITING = 0.25  # of the threads' time; alone on its cores a learner has 0.07
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 10.0, 320.0
_FREE_SHARE = 0.75  # a machine with less load than this, by core, has room for more threads
_TASKS = Path("/proc/self/task")


class LearnerThreads:
    """Begins with `most`; where they wait for cores one goes on alone, and after a while, if the
    machine is less busy, all are tried again."""

    def __init__(
        self,
        most: int,
        gives_way: bool,
        scheduled: Callable[[], tuple[float, float] | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._clock = most, clock
        self._scheduled = scheduled or scheduled_seconds
        self._seen = self._scheduled() if gives_way and most > 1 else None
        self._pause = _FIRST_PAUSE_SECONDS
        self._next_look, self._next_try = clock() + _LOOK_SECONDS, 0.0
        self._use(most)

    def _use(self, number: int) -> None:
        self.number = number
        torch.set_num_threads(number)

    def look(self) -> None:
        """Between two steps of the computation."""
        if self._seen is None or self._clock() < self._next_look:
            return
        now, found = self._clock(), self._scheduled()
        self._next_look = now + _LOOK_SECONDS
        if found is None:
            return
        ran, waited = found[0] - self._seen[0], found[1] - self._seen[1]
        self._seen = found
        if self.number == 1:
            self._try_again(now)
        elif waited > _MOST_WAITING * (ran + waited):
            self._use(1)
            self._next_try = now + self._pause
            self._pause = min(2.0 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _try_again(self, now: float) -> None:
        if now >= self._next_try and load() <= _FREE_SHARE * usable_cores():
            self._use(self._most)


def scheduled_seconds() -> tuple[float, float] | None:
    """For how long the threads of this process ran, and waited for a core to run on; None where the
    kernel does not say."""
    ran = waited = 0
    try:
        for task in _TASKS.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                nanoseconds = (task / "schedstat").read_text().split()
                ran += int(nanoseconds[0])
                waited += int(nanoseconds[1])
    except (OSError, ValueError, IndexError):
        return None
    return None if not ran else (1e-9 * ran, 1e-9 * waited)
