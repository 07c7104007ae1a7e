# SPDX-License-Identifier: Apache-2.0
"""Writes a run's timeline once: when it has been settled for long enough, or else at its end."""

from __future__ import annotations

import time
from pathlib import Path

from veldt.backends import BACKENDS
from veldt.backends.base import Backend
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.timeline import Timeline


class TimelineRecorder:
    """Does nothing for a run without `timeline`."""

    def __init__(self, plan: Plan, backend: Backend, run_dir: Path) -> None:
        self._plan, self._backend, self._run_dir = plan, backend, run_dir
        self._wanted_seconds = plan.options.timeline
        self._taken: Timeline | None = None

    def write_if_due(self, telemetry: RunTelemetry) -> None:
        wanted = self._wanted_seconds
        if wanted is None or telemetry.steady_seconds < wanted:
            return
        self._taken = self._take(wanted, telemetry)
        # Where all share one thread, writing would keep every node waiting.
        if not BACKENDS[self._plan.options.backend].runs_in_one_thread:
            self.write(telemetry)

    def write(self, telemetry: RunTelemetry) -> None:
        """Write what there is, unless it has been written."""
        if self._wanted_seconds is not None:
            self._taken = self._take(self._wanted_seconds, telemetry)
        if self._taken is not None:
            self._taken.save(self._run_dir)
        self._taken = None

    def _take(self, wanted: float, telemetry: RunTelemetry) -> Timeline:
        self._wanted_seconds = None
        end = time.time()
        spans = self._backend.take_spans()
        options = self._plan.options
        about = {
            "architecture": self._plan.architecture,
            "env": self._plan.problem.environment.name,
            "backend": options.backend,
            "actors": self._plan.problem.num_actors,
            "envs_per_actor": self._plan.problem.envs_per_actor,
        }
        settled = telemetry.steady_seconds or wanted
        begin = end - min(wanted, settled)
        return Timeline.of(self._plan.topology, spans, begin, end, about)
