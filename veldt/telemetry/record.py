# SPDX-License-Identifier: Apache-2.0
"""Files of a run in progress: metrics.jsonl, events.jsonl, topology.json and, every second,
status.json. Readers need no other connection to the run."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from veldt.diagram import describe
from veldt.files import write_atomically
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.log_files import Guard, JsonLog, MetricsWriter
from veldt.telemetry.result import dumps, lag_entry
from veldt.topology import Topology, stem

TOPOLOGY_FILE, STATUS_FILE, EVENTS_FILE = "topology.json", "status.json", "events.jsonl"
CONFIG_FILE, RESULT_FILE = "config.json", "result.json"
LEAGUE_FOLDER = "league"
LEAGUE_LOG, MEASURES_LOG = "league.jsonl", "measures.jsonl"
"""In that folder: a line for each freezing, and one for each measurement of strength."""

EventSort = Literal["node", "alarm", "checkpoint", "clients", "environment", "end"]


class RunRecord:
    """Writes the files; a write that fails is reported once and never stops training."""

    def __init__(
        self,
        run_dir: Path,
        topology: Topology,
        show: Callable[[str], None] = lambda text: None,
        tensorboard: bool = True,
    ) -> None:
        self._run_dir, self._show = run_dir, show
        self._guard = Guard()
        self._metrics = MetricsWriter(run_dir, tensorboard=tensorboard)
        self._description = describe(topology)
        self._group_of = {
            node.name: group.name for group in topology.groups() for node in group.nodes
        }
        self._slots = {queue.spec.name: queue.spec.num_slots for queue in topology.queues}
        self._events: JsonLog | None = None
        self._began = time.time()

    def begin(self) -> None:
        """Write the topology and a first status before anything runs."""
        self._guard(TOPOLOGY_FILE, self._replace, TOPOLOGY_FILE, self._description)
        self._guard(STATUS_FILE, self._replace, STATUS_FILE, self._header("starting"))

    def tick(self, run: RunTelemetry, restarted: Mapping[str, int], ended: bool = False) -> None:
        """Write the current metrics and status; at the end, means over the steady state."""
        self._metrics.write(run.env_steps, run.metrics())
        self._guard(STATUS_FILE, self._write_status, run, restarted, ended)

    def note(self, sort: EventSort, text: str) -> None:
        """Show an event to the user and keep it."""
        self._show(text)
        self.keep(sort, text)

    def keep(self, sort: EventSort, text: str) -> None:
        self._guard(EVENTS_FILE, self._write_event, sort, text)

    def close(self) -> None:
        self._metrics.close()
        if self._events is not None:
            self._guard(EVENTS_FILE, self._events.close)
            self._events = None

    def _write_event(self, sort: EventSort, text: str) -> None:
        if self._events is None:
            self._events = JsonLog(self._run_dir / EVENTS_FILE)
        self._events.write({"time": time.time(), "sort": sort, "text": text})

    def _header(self, state: str) -> dict[str, Any]:
        process = {"host": socket.gethostname(), "pid": os.getpid(), "began": self._began}
        return {"state": state, "time": time.time(), "process": process}

    def _write_status(self, run: RunTelemetry, restarted: Mapping[str, int], ended: bool) -> None:
        busy = run.busy_shares(steady=ended)
        status = {
            **self._header("ended" if ended else "running"),
            "seconds": run.observed_seconds,
            "env_steps": run.env_steps,
            "updates": run.updates,
            "episodes": run.episodes,
            "mean_return_100": run.mean_return_100,
            "mean_length_100": run.mean_length_100,
            "env_steps_per_second": run.steady_rate() if ended else run.rate("env_steps"),
            "policy_lag": lag_entry(run.lag),
            "queues": self._queues(run.queue_fill),
            "rates": run.kind_rates(steady=ended),
            "nodes": {
                node: {
                    "busy": busy.get(node),
                    "restarts": restarted.get(self._group_of[node], 0),
                }
                for node in run.kinds
            },
            "dropped": run.dropped,
        }
        self._replace(STATUS_FILE, status)

    def _queues(self, fills: Mapping[str, float]) -> dict[str, int]:
        """Filled slots by kind of queue."""
        filled: Counter[str] = Counter()
        for name, fill in fills.items():
            filled[stem(name)] += round(fill * self._slots[name])
        return dict(filled)

    def _replace(self, name: str, content: Mapping[str, Any]) -> None:
        """Not synced: losing it in a power failure costs nothing."""
        write_atomically(self._run_dir / name, dumps(dict(content)) + "\n")
