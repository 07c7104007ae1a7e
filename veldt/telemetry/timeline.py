# SPDX-License-Identifier: Apache-2.0
"""What every node did in the same few seconds, as timeline.json for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veldt.files import write_atomically
from veldt.telemetry.counters import Spans
from veldt.telemetry.result import dumps
from veldt.topology import Topology

TIMELINE_FILE = "timeline.json"
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Lane:
    """One node: its spans, in seconds since the timeline's beginning, in the order they began."""

    name: str
    kind: str
    process: int
    stages: tuple[str, ...]
    index: np.ndarray
    start: np.ndarray
    end: np.ndarray
    begin: float = 0.0
    """Start of its recording; later than 0 where its buffer was too small."""

    def shares(self, until: float) -> dict[str, float]:
        """Share of the lane's time by stage."""
        seconds = np.bincount(self.index, self.end - self.start, minlength=len(self.stages))
        covered = max(until - self.begin, 1e-9)
        shares = {name: float(seconds[n] / covered) for n, name in enumerate(self.stages)}
        return {name: share for name, share in shares.items() if share}


@dataclass(frozen=True)
class Timeline:
    """All lanes over `seconds`."""

    seconds: float
    lanes: list[Lane]
    about: dict[str, Any] = field(default_factory=dict)
    """The run's architecture, environment and sizes."""

    @staticmethod
    def of(
        topology: Topology,
        spans: Mapping[str, Spans],
        begin: float,
        end: float,
        about: dict[str, Any] | None = None,
    ) -> Timeline:
        """The part of `spans` from `begin` to `end`, both as time of day."""
        place = {node.name: p for p, g in enumerate(topology.groups(), 1) for node in g.nodes}
        lanes = [
            _cut(spans[node.name], node.name, node.kind, place[node.name], begin, end)
            for node in topology.nodes
            if node.name in spans
        ]
        return Timeline(end - begin, lanes, about or {})

    def stage_shares(self) -> dict[str, dict[str, float]]:
        """Share of the time by kind of node and stage, as in result.json."""
        found: dict[str, dict[str, float]] = {}
        for lane in self.lanes:
            alike = sum(other.kind == lane.kind for other in self.lanes)
            stages = found.setdefault(lane.kind, {})
            for stage, share in lane.shares(self.seconds).items():
                stages[stage] = stages.get(stage, 0.0) + share / alike
        return found

    def trace(self) -> dict[str, Any]:
        """The Trace Event Format: complete events in microseconds, one thread per node."""
        events: list[dict[str, Any]] = []
        for number, lane in enumerate(self.lanes, start=1):
            place = {"pid": lane.process, "tid": number}
            names = ["thread_name"]
            if all(event["pid"] != lane.process for event in events):
                names.append("process_name")
            events += [{"ph": "M", "name": n, **place, "args": {"name": lane.name}} for n in names]
            starts = lane.start * _MICROSECONDS
            lengths = np.maximum(lane.end - lane.start, 0.0) * _MICROSECONDS
            begun, took = starts.round(3).tolist(), lengths.round(3).tolist()
            events += [
                {"ph": "X", "name": name, "cat": lane.kind, "ts": ts, "dur": dur, **place}
                for name, ts, dur in zip(
                    (lane.stages[n] for n in lane.index), begun, took, strict=True
                )
            ]
        about = {**self.about, "seconds": self.seconds, "stage_shares": self.stage_shares()}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    def save(self, run_dir: Path) -> None:
        write_atomically(run_dir / TIMELINE_FILE, dumps(self.trace()) + "\n")


def _cut(spans: Spans, name: str, kind: str, process: int, begin: float, end: float) -> Lane:
    order = np.argsort(spans.start, kind="stable")
    start, stop, index = spans.start[order], spans.end[order], spans.index[order]
    first = float(start[0]) - begin if start.size else 0.0
    inside = (stop > begin) & (start < end)
    start, stop = np.clip(start[inside], begin, end), np.clip(stop[inside], begin, end)
    return Lane(
        name,
        kind,
        process,
        spans.stages,
        index[inside],
        start - begin,
        stop - begin,
        begin=max(0.0, first),
    )
