# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, Ctrl-C and the clock of a run: noted whenever they come, acted on where nothing can be
torn.

A job that is to end gets its signal from `timeout`, systemd or Slurm at any moment, often twice. An
exception out of a signal handler could strike in the middle of a save; a note cannot.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_IMPATIENT_SECONDS = 2.0  # who presses Ctrl-C again after so long wants out, saved or not
_PLANNING_SECONDS = 25.0  # what a run that is to end may still take to begin; jobs are given 30

_terminated_early = False


class Terminated(KeyboardInterrupt):
    """SIGTERM: end like after Ctrl-C, but as asked for."""


class OutOfTime(BaseException):
    """Something took longer than it may."""


def defer_termination() -> None:
    """For a program that will be a run: a SIGTERM before the run begins is kept for it, so that
    there is a result and a checkpoint of it, too. One that cannot begin soon ends at once."""

    def note(*_: object) -> None:
        global _terminated_early
        if not _terminated_early:
            _terminated_early = True
            signal.signal(signal.SIGALRM, _raise_terminated)
            signal.setitimer(signal.ITIMER_REAL, _PLANNING_SECONDS)

    signal.signal(signal.SIGTERM, note)


def is_ending() -> bool:
    """Whether a SIGTERM came before the run began."""
    return _terminated_early


def _raise_terminated(*_: object) -> None:
    raise Terminated


class Signals:
    """The signals of one run while it is entered. Outside the main thread they belong to the host
    program, and nothing is done about them."""

    def __init__(self) -> None:
        self._received: KeyboardInterrupt | None = None
        self._received_at = 0.0
        self._may_raise = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        global _terminated_early
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread
            return self
        if _terminated_early:
            _terminated_early = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._received = Terminated()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
            self._received_at = now
        elif number == signal.SIGINT and now > self._received_at + _IMPATIENT_SECONDS:
            raise KeyboardInterrupt
        if self._may_raise:
            raise self._received

    def check(self) -> None:
        """Raise what was received, if anything was."""
        if self._received is not None:
            raise self._received

    @contextmanager
    def interruptible(self, seconds: float | None = None) -> Iterator[None]:
        """Within, signals raise at once, and OutOfTime is raised after `seconds`: for work that may
        take long and can be left anywhere."""
        with time_limit(seconds if self._before else None):
            self._may_raise = True
            try:
                yield
            except KeyboardInterrupt:
                self.check()  # a library may have made its own of the one raised here, as Ray does
                raise
            finally:
                self._may_raise = False


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """OutOfTime within, after `seconds`: also while Python code of an environment sleeps."""
    if seconds is None or _terminated_early:
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTime

    try:
        before = signal.signal(signal.SIGALRM, ring)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        if not _terminated_early:  # else the alarm is set for that by now
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


def process_start() -> float:
    """When this process began, on the monotonic clock; now, where the kernel does not tell."""
    now = time.monotonic()
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, AttributeError):
        return now
    age = since_boot - started_ticks / os.sysconf("SC_CLK_TCK")
    return now - max(0.0, age)
