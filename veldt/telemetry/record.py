# SPDX-License-Identifier: Apache-2.0
"""What a run leaves in its directory while it goes: metrics.jsonl, events.jsonl, topology.json once
and status.json about once per second. Who watches needs no other way to the run."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from veldt.diagram import plain_data, stem
from veldt.files import write_whole
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.result import dumps, lag_entry
from veldt.telemetry.writers import AppendLog, Guard, MetricsWriter
from veldt.topology import Topology

TOPOLOGY_FILE, STATUS_FILE, EVENTS_FILE = "topology.json", "status.json", "events.jsonl"
_RATE_TICKS = 4

EventSort = Literal["node", "alarm", "checkpoint", "end"]


@dataclass(frozen=True)
class _Moment:
    """Counters by kind of node, added up, at some second of the run."""

    seconds: float
    counters: dict[str, Counter[str]]


class RunRecord:
    """Writes the files. A write that fails is reported once and never stops training."""

    def __init__(
        self, run_dir: Path, topology: Topology, show: Callable[[str], None] = lambda text: None
    ) -> None:
        self._run_dir, self._show = run_dir, show
        self._guard = Guard()
        self._metrics = MetricsWriter(run_dir)
        self._drawing = plain_data(topology)
        self._group_of = {
            node.name: group.name for group in topology.groups() for node in group.nodes
        }
        self._slots = {queue.spec.name: queue.spec.num_slots for queue in topology.queues}
        self._events: AppendLog | None = None
        self._recent: deque[_Moment] = deque(maxlen=_RATE_TICKS)
        self._first: _Moment | None = None
        self._began = time.time()

    def begin(self) -> None:
        """Say what is going to run, before it does."""
        self._guard(TOPOLOGY_FILE, self._replace, TOPOLOGY_FILE, self._drawing)
        self._guard(STATUS_FILE, self._replace, STATUS_FILE, self._header("starting"))

    def tick(self, run: RunTelemetry, restarted: Mapping[str, int], ended: bool = False) -> None:
        """Write the run's numbers of this moment; at the end, means over the run instead."""
        self._metrics.write(run.env_steps, run.metrics())
        self._guard(STATUS_FILE, self._write_status, run, restarted, ended)

    def note(self, sort: EventSort, text: str) -> None:
        """Show one line about something unusual, and keep it."""
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
            self._events = AppendLog(self._run_dir / EVENTS_FILE)
            self._events.cut_torn_line()
        record = {"time": time.time(), "sort": sort, "text": text}
        self._events.write(dumps(record).encode() + b"\n")

    def _header(self, state: str) -> dict[str, Any]:
        process = {"host": socket.gethostname(), "pid": os.getpid(), "began": self._began}
        return {"state": state, "time": time.time(), "process": process}

    def _write_status(self, run: RunTelemetry, restarted: Mapping[str, int], ended: bool) -> None:
        moment = _Moment(run.observed_seconds, _counters_by_kind(run))
        if self._first is None and run.updates:
            self._first = moment
        self._recent.append(moment)
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
            "rates": _rates((self._first if ended else None) or self._recent[0], moment),
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
        """Readers find the old file or the new one. Not synced: its loss with the machine's power
        costs nothing."""
        write_whole(self._run_dir / name, dumps(dict(content)) + "\n")


def _counters_by_kind(run: RunTelemetry) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for node, snapshot in run.snapshots.items():
        total = found.setdefault(run.kinds[node], Counter())
        for name, value in snapshot.counters.items():
            if name not in snapshot.gauges:
                total[name] += value  # type: ignore[assignment]
    return found


def _rates(before: _Moment, after: _Moment) -> dict[str, dict[str, float]]:
    """Increase per second by kind and counter."""
    seconds = after.seconds - before.seconds
    if seconds <= 0:
        return {}
    return {
        kind: {
            name: (value - before.counters.get(kind, Counter())[name]) / seconds
            for name, value in counters.items()
        }
        for kind, counters in after.counters.items()
    }
