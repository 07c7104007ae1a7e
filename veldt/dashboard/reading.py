# SPDX-License-Identifier: Apache-2.0
"""A run directory as plain data, read again only where it changed. The page knows nothing else of
the run, so it works beside it, after it, and again when it is resumed."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from veldt.errors import ConfigurationError
from veldt.telemetry.log_files import METRICS_FILE, JsonLines
from veldt.telemetry.record import (
    CONFIG_FILE,
    EVENTS_FILE,
    LEAGUE_FOLDER,
    LEAGUE_LOG,
    MEASURES_LOG,
    RESULT_FILE,
    STATUS_FILE,
    TOPOLOGY_FILE,
)
from veldt.telemetry.result import RunResult

CURVE_POINTS = 400
DRAWN = ("counter/", "return/", "system/", "environment/", "info/")
"""Beginnings of the names of metrics that are drawn."""
EVENTS_SHOWN = 60
MOST_RUNS = 24
"""Of one folder, on a page that compares."""
_SILENT_SECONDS = 60.0

State = Literal["starting", "running", "ended", "lost"]


@dataclass(frozen=True)
class Point:
    """One line of metrics.jsonl, as far as it is drawn."""

    time: float
    env_steps: int
    mean_return: float | None
    env_steps_per_second: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the other charts draw, by name."""


@dataclass(frozen=True)
class RunView:
    """A run at one moment. What is not known yet is empty."""

    config: dict[str, Any]
    state: State
    """lost: its process is gone and left no result."""
    status: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    result: RunResult | None = None
    """Only of the run that `status` is about, not of one that was resumed since."""
    curve: list[Point] = field(default_factory=list)
    """Evenly thinned to at most CURVE_POINTS."""
    latest: dict[str, Any] = field(default_factory=dict)
    """The newest line of metrics.jsonl."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The newest, oldest first."""
    freezings: list[dict[str, Any]] = field(default_factory=list)
    """Of a league: who was frozen when, with the payoff and the ratings at that time."""
    measures: list[dict[str, Any]] = field(default_factory=list)
    """Of a league: how strong its main player was when."""

    def option(self, name: str) -> Any:
        return self.config["options"].get(name)

    @property
    def restarts(self) -> int:
        """Of processes, not of the nodes in them."""
        nodes, groups = self.status.get("nodes", {}), self.topology.get("processes", [])
        return sum(nodes.get(group[0], {}).get("restarts", 0) for group in groups)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """What the nodes of one kind say of themselves."""
        nodes = self.status.get("nodes", {})
        return [nodes[name] for name in self.topology["roles"][kind] if name in nodes]


class RunReader:
    """Reads one directory. Raises ConfigurationError where there is no run."""

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        self._json_files: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._metrics = JsonLines(self.run_dir / METRICS_FILE)
        self._events_file = JsonLines(self.run_dir / EVENTS_FILE)
        folder = self.run_dir / LEAGUE_FOLDER
        self._league = [_History(folder / name) for name in (LEAGUE_LOG, MEASURES_LOG)]
        self._points: list[Point] = []
        self._latest: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        if not self._read_json(CONFIG_FILE):
            raise ConfigurationError(
                f"{self.run_dir} is not a run directory; give the folder that holds config.json"
            )

    def read(self) -> RunView:
        status = self._read_json(STATUS_FILE)
        result = self._read_json(RESULT_FILE)
        self._read_metrics()
        self._read_events()
        state = _state(status, result)
        return RunView(
            config=self._read_json(CONFIG_FILE),
            state=state,
            status=status,
            topology=self._read_json(TOPOLOGY_FILE),
            result=RunResult.from_mapping(result) if state == "ended" and result else None,
            curve=_thinned(self._points),
            latest=self._latest,
            events=list(self._events),
            freezings=self._league[0].read(),
            measures=self._league[1].read(),
        )

    def _read_json(self, name: str) -> dict[str, Any]:
        """The content of a file; what it had before where it cannot be read just now."""
        path = self.run_dir / name
        known_stamp, known = self._json_files.get(name, (None, {}))
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == known_stamp:
                return known
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return known
        self._json_files[name] = (stamp, content)
        return content

    def _read_metrics(self) -> None:
        lines, anew = self._metrics.new_lines()
        if anew:
            self._points = []
        for line in lines:
            self._latest = line
            steps = line.get("env_steps", 0)
            # A resumed run goes on from its checkpoint; what came after that is no part of it.
            while self._points and self._points[-1].env_steps > steps:
                self._points.pop()
            rate = line.get("rate/env_steps_per_second") or 0.0
            metrics = {name: line[name] for name in line if name.startswith(DRAWN)}
            returned = line.get("return/mean_100")
            self._points.append(Point(line["time"], steps, returned, rate, metrics))

    def _read_events(self) -> None:
        lines, anew = self._events_file.new_lines()
        self._events = [*([] if anew else self._events), *lines][-EVENTS_SHOWN:]


def runs_in(paths: Sequence[str | Path]) -> dict[str, Path]:
    """The run directories among `paths` and directly in them, by name; the newest come first."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [] if (path / CONFIG_FILE).exists() else path.glob(f"*/{CONFIG_FILE}")
        newest = sorted(inside, key=lambda file: file.stat().st_mtime, reverse=True)
        found += [file.parent for file in newest[:MOST_RUNS]] or [path]
    short = [path.resolve().name for path in found]
    names = short if len(set(short)) == len(short) else list(map(str, found))
    return dict(zip(names, found, strict=True))


class _History:
    """All lines of a file that have env_steps, in their order; a resumed run takes back what came
    after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self._file, self._lines = JsonLines(path), list[dict[str, Any]]()

    def read(self) -> list[dict[str, Any]]:
        lines, anew = self._file.new_lines()
        if anew:
            self._lines = []
        for line in lines:
            while self._lines and self._lines[-1]["env_steps"] > line["env_steps"]:
                self._lines.pop()
            self._lines.append(line)
        return list(self._lines)


def _state(status: dict[str, Any], result: dict[str, Any]) -> State:
    if not status:
        return "ended" if result else "starting"
    if status["state"] == "ended":
        return "ended"
    return status["state"] if _is_alive(status) else "lost"


def _is_alive(status: dict[str, Any]) -> bool:
    process = status["process"]
    if process["host"] != socket.gethostname():
        return time.time() - status["time"] < _SILENT_SECONDS
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, but there
        return True
    return True


def _thinned(points: list[Point]) -> list[Point]:
    """Every k-th point, and always the last."""
    stride = -(-len(points) // CURVE_POINTS)
    return points[(len(points) - 1) % stride :: stride] if points else []


def rate_of(view: RunView, kind: str, counter: str) -> float | None:
    """Items per second that the nodes of one kind counted together; None where they count none."""
    return view.status.get("rates", {}).get(kind, {}).get(counter)
