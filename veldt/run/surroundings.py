# SPDX-License-Identifier: Apache-2.0
"""What lies around a run's nodes: the machine, trackers, and what environments are told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from veldt.backends import BACKENDS
from veldt.backends.base import Backend
from veldt.run.curriculum import Curriculum
from veldt.run.external import ClientWatch
from veldt.run.plan import Plan
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.machine_meter import MachineMeter
from veldt.telemetry.record import RunRecord
from veldt.trackers.child import Trackers


class Surroundings:
    """Looked at about once per second."""

    def __init__(self, plan: Plan, backend: Backend, run_dir: Path, record: RunRecord) -> None:
        self._backend = backend
        self._nodes_are_here = BACKENDS[plan.options.backend].stays_on_this_machine
        self._machine = MachineMeter()
        self.trackers = Trackers(plan.options.trackers, run_dir, partial(record.note, "alarm"))
        self.curriculum = Curriculum(
            plan.problem.environment, backend, partial(record.note, "environment")
        )

        self._client_watch = ClientWatch(plan.problem.environment, record.note)

    @contextmanager
    def watched(self) -> Iterator[None]:
        with self.trackers.following():
            try:
                yield
            finally:
                self._machine.close()

    def look(self, telemetry: RunTelemetry) -> None:
        """Put what is seen among the run's metrics."""
        self.trackers.look()
        self._client_watch.look(telemetry.snapshots)
        nodes = self._backend.process_ids().values() if self._nodes_are_here else ()
        machine = self._machine.read([os.getpid(), *nodes])
        telemetry.outside = {**machine, **self.curriculum.metrics()}
