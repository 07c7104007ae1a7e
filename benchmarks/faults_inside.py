# SPDX-License-Identifier: Apache-2.0
"""A `veldt` command whose node processes are killed, stopped and delayed at seeded moments:
`python faults_inside.py SEED,RATE KINDS_TO_SPARE train ...`, with RATE faults per second."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from veldt.cli.main import main as veldt
from veldt.run import driver

_ACTIONS = ("kill", "kill", "stop", "delay")  # a stopped process must be found by its silence
_DELAY_SECONDS = 1.0


class Chaos:
    """About `rate` faults per second, drawn from `seed`: which process, what happens to it, when.

    The moments follow from the seed; what a process is doing then does not, which is the point."""

    def __init__(self, seed: int, rate: float, spared: tuple[str, ...]) -> None:
        self._random = np.random.default_rng(seed)
        self._rate, self._spared = rate, spared
        self._next = self._random.exponential(1.0 / rate)
        self._asleep: list[tuple[float, int]] = []
        self.log: list[tuple[float, str, str]] = []

    def act(self, process_ids: Mapping[str, int], elapsed_seconds: float) -> None:
        """Do what is due by now to the processes, given by group name."""
        for wake_at, pid in list(self._asleep):
            if elapsed_seconds >= wake_at:
                self._asleep.remove((wake_at, pid))
                _signal(pid, signal.SIGCONT)
        while elapsed_seconds >= self._next:
            self._next += self._random.exponential(1.0 / self._rate)
            self._strike(process_ids, elapsed_seconds)

    def _strike(self, process_ids: Mapping[str, int], elapsed_seconds: float) -> None:
        victims = [
            (name, pid)
            for name, pid in sorted(process_ids.items())
            if not any(part.rsplit("-", 1)[0] in self._spared for part in name.split("+"))
        ]
        choice, action = self._random.random(), str(self._random.choice(_ACTIONS))
        if not victims:
            return
        name, pid = victims[int(choice * len(victims))]
        self.log.append((elapsed_seconds, action, name))
        _signal(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "delay":
            self._asleep.append((elapsed_seconds + _DELAY_SECONDS, pid))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def disturb(chaos: Chaos) -> None:
    """Let `chaos` act whenever a run lets its backend work."""
    make_backend, began = driver.make_backend, time.monotonic()

    def disturbed(*arguments: Any) -> Any:
        backend = make_backend(*arguments)
        advance = backend.advance

        def advance_and_strike(seconds: float) -> None:
            advance(seconds)
            chaos.act(backend.process_ids(), time.monotonic() - began)

        backend.advance = advance_and_strike
        return backend

    driver.make_backend = disturbed


if __name__ == "__main__":
    seed, rate = sys.argv[1].split(",")
    disturb(Chaos(int(seed), float(rate), tuple(filter(None, sys.argv[2].split(",")))))
    sys.exit(veldt(sys.argv[3:]))
