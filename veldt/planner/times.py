# SPDX-License-Identifier: Apache-2.0
"""Times of each stage, from the timelines of short runs with one and two actors, or from a file
that was written on another machine (one with a GPU, for example)."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veldt.api import train_from
from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.telemetry.log_files import metric_rows
from veldt.telemetry.record import TIMELINE_FILE
from veldt.telemetry.result import RunResult

_TRIMMED = 0.05  # share of the longest spans: another process had the core
_KEPT_SAMPLES = 400
_UPDATE = "learn"


@dataclass(frozen=True)
class Times:
    """Samples of seconds per pass by "kind/stage", and fits over batch sizes."""

    samples: dict[str, list[float]]
    step_cpu_share: float = 1.0
    """Share of the time of an environment step that needs a core."""
    measured: list[dict[str, float]] = field(default_factory=list)
    """The runs they are from: actors, env steps per second, lag."""
    fits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """a and m of a + m * size, by "kind/stage": for an inference server, size is the groups in a
    forward pass; for a learner, the rows of an update, where several batch sizes were measured."""

    def drawn(self, key: str, count: int, random: np.random.Generator) -> float:
        """Seconds of `count` passes; 0 for a stage without samples."""
        found = self.samples.get(key)
        if not found:
            return 0.0
        if count > 8:  # the sum of many is close to its mean
            return float(np.mean(found)) * count
        return float(sum(found[int(random.random() * len(found))] for _ in range(count)))

    def mean(self, key: str) -> float:
        found = self.samples.get(key)
        return float(np.mean(found)) if found else 0.0

    def seconds(self, key: str, size: int) -> float:
        """Mean seconds of a pass of this size."""
        constant, slope = self.fits.get(key, (self.mean(key), 0.0))
        return constant + slope * size

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.__dict__) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str) -> Times:
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            known = Times.__dataclass_fields__
            return Times(**{name: stored[name] for name in known if name in stored})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"cannot read times from {path} ({error}); veldt plan --save-times writes one"
            ) from error


@dataclass(frozen=True)
class Trial:
    """A short run that times are measured in."""

    actors: int
    rows: int
    """Of one update."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """In addition to the plan's: its rate is then no measure of the plan."""


def calibrate(
    architecture: str, options: Mapping[str, Any], trials: Sequence[Trial], seconds: float
) -> Times:
    """Run the architecture for `seconds` in each trial."""
    samples: dict[str, list[float]] = {}
    points: dict[str, list[tuple[float, float]]] = {}  # sizes and seconds
    several_sizes = len({trial.rows for trial in trials}) > 1
    measured = []
    for trial in trials:
        given = {**options, **trial.options, "num_actors": trial.actors}
        result, trace, last = _short_run(architecture, given, seconds)
        found = spans(trace)
        passes = last.get("counter/inference_batches")
        for key, lengths in found.items():
            kind, stage = key.split("/")
            mean = float(np.mean(lengths))
            # One actor has a core to itself; spans of more would include waits for cores.
            known = samples.setdefault(key, lengths)
            # A learner that is idle in between is slower, and so is one that shares a core.
            if stage == _UPDATE and trial.rows == trials[0].rows:
                samples[key] = min(known, lengths, key=np.mean)
            if f"{kind}/{_UPDATE}" in found and several_sizes:
                points.setdefault(key, []).append((trial.rows, mean))
            elif passes and stage == "infer" and kind not in ("actor", "agent"):
                groups = last["counter/inference_requests"] / passes
                points.setdefault(key, []).append((groups, mean))
        if not trial.options:
            rate, lag = result.env_steps_per_second or 0.0, result.policy_lag["mean"] or 0.0
            speed = {"env_steps_per_second": float(rate), "policy_lag": float(lag)}
            measured.append({"actors": trial.actors, **speed})
    return Times(samples, 1.0, measured, {key: _line(found) for key, found in points.items()})


def _short_run(
    architecture: str, options: Mapping[str, Any], seconds: float
) -> tuple[RunResult, dict[str, Any], dict[str, Any]]:
    """Its result, timeline and last metrics."""
    with tempfile.TemporaryDirectory(prefix="veldt-plan-") as folder:
        run_dir = Path(folder) / "run"
        given = {"device": "cpu", "backend": "process", **options, "run_dir": str(run_dir)}
        given |= {"quiet": True, "evaluation_episodes": 0}
        given |= {"max_seconds": seconds, "timeline": seconds / 2}
        result = train_from(architecture, given)
        trace = json.loads((run_dir / TIMELINE_FILE).read_text(encoding="utf-8"))
        return result, trace, metric_rows(run_dir)[-1]


def cpu_share(factory: EnvironmentFactory, width: int, seconds: float = 0.5) -> float:
    """Share of a step's time that needs a core: less than 1 if environments sleep or compute
    elsewhere."""
    environment, random = factory.make(width, seed=0), np.random.default_rng(0)
    try:
        environment.reset()
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            environment.step(environment.random_actions(random))
        return min(1.0, (time.process_time() - cpu) / (time.perf_counter() - wall))
    finally:
        environment.close()


def spans(trace: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds per pass by "kind/stage".

    Time in no stage is "kind/other", divided by the passes of the most frequent stage. An update
    right after a wait takes up to half as long again, because its memory is in no cache; where
    half of the updates or more follow another update, only those count."""
    lengths: defaultdict[str, list[float]] = defaultdict(list)
    warm: defaultdict[str, list[float]] = defaultdict(list)
    lanes: defaultdict[tuple[str, int], float] = defaultdict(float)
    is_cold: defaultdict[int, bool] = defaultdict(lambda: True)
    passed = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in sorted(passed, key=lambda event: float(event["ts"])):
        kind, lane, stage, length = event["cat"], event["tid"], event["name"], event["dur"] / 1e6
        lanes[kind, lane] += length
        if stage != "wait":
            lengths[f"{kind}/{stage}"].append(length)
        if stage == _UPDATE and not is_cold[lane]:
            warm[f"{kind}/{stage}"].append(length)
        if stage in ("wait", _UPDATE):
            is_cold[lane] = stage == "wait"
    random, found = np.random.default_rng(0), {}
    for key, values in lengths.items():
        if 2 * len(warm[key]) >= len(values):
            values = warm[key]
        kept = np.sort(values)[: max(1, int((1 - _TRIMMED) * len(values)))]
        found[key] = random.choice(kept, min(len(kept), _KEPT_SAMPLES)).tolist()
    for kind in {kind for kind, _ in lanes}:
        timed = [spent for (own, _), spent in lanes.items() if own == kind]
        passes = max(len(v) for k, v in lengths.items() if k.startswith(f"{kind}/"))
        idle = max(0.0, trace["otherData"]["seconds"] * len(timed) - sum(timed))
        found[f"{kind}/other"] = [idle / passes]
    return found


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """a and m of a + m * size; all of it constant where only one size was measured."""
    sizes, seconds = (np.array(column) for column in zip(*points, strict=True))
    slope, constant = np.polyfit(sizes, seconds, 1) if np.ptp(sizes) >= 0.2 else (-1.0, 0.0)
    if slope < 0 or constant < 0:
        return float(seconds.mean()), 0.0
    return float(constant), float(slope)
