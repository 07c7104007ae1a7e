# SPDX-License-Identifier: Apache-2.0
"""Files of a run: metrics, events, topology, a status every second, and the timeline.

Readers need no other connection to the run.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veldt.diagram import describe
from veldt.files import write_atomically
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.counters import Spans
from veldt.telemetry.log_files import METRICS_FILE, Guard, JsonLog, TensorBoardLog
from veldt.telemetry.result import dumps, lag_entry
from veldt.topology import Topology, stem

TOPOLOGY_FILE, STATUS_FILE, EVENTS_FILE = "topology.json", "status.json", "events.jsonl"
CONFIG_FILE, RESULT_FILE, TIMELINE_FILE = "config.json", "result.json", "timeline.json"
LEAGUE_FOLDER = "league"
LEAGUE_LOG, MEASURES_LOG = "league.jsonl", "measures.jsonl"
"""In that folder: a line for each freezing, and one for each measurement of strength."""

EventSort = Literal["node", "alarm", "checkpoint", "clients", "end"]


class RunRecord:
    """Writes the files. A write that fails is reported once, and training continues."""

    def __init__(
        self,
        run_dir: Path,
        topology: Topology,
        show: Callable[[str], None] = lambda text: None,
        tensorboard: bool = True,
    ) -> None:
        self._run_dir, self._show, self._has_tensorboard = run_dir, show, tensorboard
        self._guard = Guard()
        self._logs: dict[str, JsonLog] = {}
        self._tensorboard: TensorBoardLog | None = None
        self._description = describe(topology)
        self._group_of = {
            node.name: group.name for group in topology.groups() for node in group.nodes
        }
        self._slots = {queue.spec.name: queue.spec.num_slots for queue in topology.queues}
        self._began = time.time()

    def begin(self) -> None:
        """Write the topology and a first status before anything runs."""
        self._guard(TOPOLOGY_FILE, self._replace, TOPOLOGY_FILE, self._description)
        self._guard(STATUS_FILE, self._replace, STATUS_FILE, self._header("starting"))

    def tick(
        self,
        run: RunTelemetry,
        restarted: Mapping[str, int],
        ended: bool = False,
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Write the current metrics and status, and an evaluation that has ended since; at the end,
        means over the steady state."""
        metrics = {**run.metrics(), **(evaluation or {})}
        line = {"time": time.time(), "env_steps": run.env_steps, **metrics}
        self._guard(STATUS_FILE, self._write_status, run, restarted, ended)
        self._guard(METRICS_FILE, self._append, METRICS_FILE, line)
        if self._has_tensorboard:
            self._guard("TensorBoard events", self._write_scalars, run.env_steps, metrics)

    def note(self, sort: EventSort, text: str) -> None:
        """Show an event to the user and keep it."""
        self._show(text)
        self.keep(sort, text)

    def keep(self, sort: EventSort, text: str) -> None:
        """Keep an event without showing it."""
        event = {"time": time.time(), "sort": sort, "text": text}
        self._guard(EVENTS_FILE, self._append, EVENTS_FILE, event)

    def close(self) -> None:
        """Close the files; a later write opens them again."""
        for log in (*self._logs.values(), self._tensorboard):
            if log is not None:
                self._guard("closing of files", log.close)
        self._logs, self._tensorboard = {}, None

    def _append(self, name: str, content: dict[str, Any]) -> None:
        if name not in self._logs:
            self._logs[name] = JsonLog(self._run_dir / name)
        self._logs[name].write(content)

    def _write_scalars(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        if self._tensorboard is None:
            self._tensorboard = TensorBoardLog(self._run_dir / "tensorboard")
        self._tensorboard.scalars(env_steps, metrics)

    def _header(self, state: str) -> dict[str, Any]:
        process = {"host": socket.gethostname(), "pid": os.getpid(), "began": self._began}
        return {"state": state, "time": time.time(), "process": process}

    def _write_status(self, run: RunTelemetry, restarted: Mapping[str, int], ended: bool) -> None:
        busy = run.busy_shares(steady=ended)
        filled: Counter[str] = Counter()
        for name, fill in run.queue_fill.items():
            filled[stem(name)] += round(fill * self._slots[name])
        status = {
            **self._header("ended" if ended else "running"),
            "seconds": run.observed_seconds,
            "env_steps": run.env_steps,
            "updates": run.updates,
            "episodes": run.episodes,
            "mean_return_100": run.mean_return_100,
            "mean_length_100": run.mean_length_100,
            "env_steps_per_second": run.steady_rate() if ended else run.rate("env_steps"),
            "policy_lag": lag_entry(run.lag, run.env_steps, run.updates),
            "queues": filled,
            "rates": run.kind_rates(steady=ended),
            "nodes": {
                node: {"busy": busy.get(node), "restarts": restarted.get(self._group_of[node], 0)}
                for node in run.kinds
            },
            "dropped": run.dropped,
        }
        self._replace(STATUS_FILE, status)

    def _replace(self, name: str, content: Mapping[str, Any]) -> None:
        """Not synced, because losing it in a power failure costs nothing."""
        write_atomically(self._run_dir / name, dumps(content) + "\n")


def timeline(
    topology: Topology,
    spans_of: Mapping[str, Spans],
    begin: float,
    end: float,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The stages of every node between two times of day, for timeline.json.

    In the Trace Event Format, which ui.perfetto.dev opens: complete events in microseconds, one
    thread per node."""
    nodes = [node for node in topology.nodes if node.name in spans_of]
    alike = Counter(node.kind for node in nodes)
    group_of = {n.name: (pid, g) for pid, g in enumerate(topology.groups(), 1) for n in g.nodes}
    events: list[dict[str, Any]] = []
    shares: dict[str, Counter[str]] = {}
    for number, node in enumerate(nodes, start=1):
        spans, (pid, group) = spans_of[node.name], group_of[node.name]
        place = {"pid": pid, "tid": number}
        for kind, name in (("process_name", group.name), ("thread_name", node.name)):
            events.append({"ph": "M", "name": kind, **place, "args": {"name": name}})
        inside = (spans.end > begin) & (spans.start < end)
        names = [spans.stages[stage] for stage in spans.index[inside]]
        start = np.clip(spans.start[inside], begin, end)
        lengths = np.maximum(np.clip(spans.end[inside], begin, end) - start, 0.0)
        micros = (1e6 * np.stack([start - begin, lengths])).round(3).tolist()
        common = {"ph": "X", "cat": node.kind, **place}
        events += [
            {**common, "name": name, "ts": ts, "dur": dur}
            for name, ts, dur in zip(names, *micros, strict=True)
        ]
        # A buffer that was too small begins later.
        covered = end - max(begin, float(spans.start.min(initial=end)))
        own = shares.setdefault(node.kind, Counter())
        for name, length in zip(names, lengths.tolist(), strict=True):
            own[name] += length / max(covered, 1e-9) / alike[node.kind]
    data = {**about, "seconds": end - begin, "stage_shares": shares}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": data}
