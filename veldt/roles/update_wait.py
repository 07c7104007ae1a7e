# SPDX-License-Identifier: Apache-2.0
"""What it costs an actor to wait for weights that know its last trajectory: with A2C's barrier, the
time of the learner and of the slowest actor."""

from __future__ import annotations

import time

from veldt.telemetry.counters import NodeTelemetry


class UpdateWait:
    """Counts seconds, and their share of the time since the first trajectory began."""

    def __init__(self, telemetry: NodeTelemetry) -> None:
        self._seconds = telemetry.counter("wait_for_update_seconds")
        self._share = telemetry.gauge("wait_for_update_share")
        self._waited_before = self._seconds.value  # by an earlier incarnation
        self._first_began: float | None = None
        self._finished = 0.0

    def trajectory_finished(self) -> None:
        self._finished = time.perf_counter()

    def trajectory_begins(self) -> None:
        now = time.perf_counter()
        if self._first_began is None:
            self._first_began = now
            return
        self._seconds.add(now - self._finished)
        waited = self._seconds.value - self._waited_before
        self._share.set(waited / (now - self._first_began))
