# SPDX-License-Identifier: Apache-2.0
"""Reads a run directory as plain data.

The page has no other connection to the run, so it works during the run, after it, and again when
the run is resumed.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from veldt.errors import ConfigurationError
from veldt.telemetry.log_files import EVALUATION, METRICS_FILE, JsonLines, json_object
from veldt.telemetry.record import (
    CONFIG_FILE,
    EVENTS_FILE,
    RESULT_FILE,
    STATUS_FILE,
    TOPOLOGY_FILE,
)
from veldt.telemetry.result import RunResult

CURVE_POINTS = 400
EVENTS_SHOWN = 60
_SILENT_SECONDS = 60.0

State = Literal["starting", "running", "ended", "lost"]


@dataclass(frozen=True)
class RunView:
    """A run at one moment; unknown parts are empty."""

    config: dict[str, Any]
    state: State
    """lost: its process ended without a result."""
    status: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    result: RunResult | None = None
    """None while the run continues after a result."""
    curve: list[dict[str, Any]] = field(default_factory=list)
    """At most CURVE_POINTS lines of metrics.jsonl, evenly spaced, and always the newest."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """Its lines with an evaluation, thinned as the curve."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The newest events, oldest first."""

    def option(self, name: str) -> Any:
        return self.config["options"].get(name)

    @property
    def restarts(self) -> int:
        """Restarts of processes; a process may hold several nodes."""
        nodes, groups = self.status.get("nodes", {}), self.topology.get("processes", [])
        return sum(nodes.get(group[0], {}).get("restarts", 0) for group in groups)

    def nodes_of(self, kind: str) -> list[dict[str, Any]]:
        """Entries of the nodes of one kind in status.json."""
        nodes = self.status.get("nodes", {})
        return [nodes[name] for name in self.topology["roles"][kind] if name in nodes]


class RunReader:
    """Reads one directory. Raises ConfigurationError where there is no run."""

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        self._metrics_file = JsonLines(self.run_dir / METRICS_FILE)
        self._lines: list[dict[str, Any]] = []
        self._events_file = JsonLines(self.run_dir / EVENTS_FILE)
        self._events: list[dict[str, Any]] = []
        config = self._read_json(CONFIG_FILE)
        if "architecture" not in config or not isinstance(config.get("options"), dict):
            raise ConfigurationError(
                f"{self.run_dir} is not a run directory; give the folder that holds config.json"
            )

    def read(self) -> RunView:
        status = self._read_json(STATUS_FILE)
        result = self._read_json(RESULT_FILE)
        new_events, is_new_file = self._events_file.new_lines()
        self._events = [*([] if is_new_file else self._events), *new_events][-EVENTS_SHOWN:]
        state, lines = _state(status, result), self._read_metrics()
        return RunView(
            config=self._read_json(CONFIG_FILE),
            state=state,
            status=status,
            topology=self._read_json(TOPOLOGY_FILE),
            result=RunResult.from_mapping(result) if state == "ended" and result else None,
            curve=thinned(lines),
            evaluations=thinned([line for line in lines if EVALUATION in line]),
            events=list(self._events),
        )

    def _read_metrics(self) -> list[dict[str, Any]]:
        """All lines in order of env steps: a resumed run continues from its checkpoint."""
        lines, is_new_file = self._metrics_file.new_lines()
        if is_new_file:
            self._lines = []
        for line in lines:
            while self._lines and self._lines[-1]["env_steps"] > line["env_steps"]:
                self._lines.pop()
            self._lines.append(line)
        return self._lines

    def _read_json(self, name: str) -> dict[str, Any]:
        """Content of a file; empty if it is missing or damaged."""
        with suppress(OSError):
            return json_object((self.run_dir / name).read_bytes()) or {}
        return {}


def _state(status: dict[str, Any], result: dict[str, Any]) -> State:
    if not status:
        return "ended" if result else "starting"
    if status["state"] == "ended":
        return "ended"
    if status["process"]["host"] == socket.gethostname():
        is_alive = psutil.pid_exists(status["process"]["pid"])
    else:
        is_alive = time.time() - status["time"] < _SILENT_SECONDS
    if not is_alive:
        return "lost"
    return "running" if status["state"] == "running" else "starting"


def thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every k-th line, always including the last."""
    stride = -(-len(lines) // CURVE_POINTS)
    return lines[(len(lines) - 1) % stride :: stride] if lines else []
