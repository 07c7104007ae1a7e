# SPDX-License-Identifier: Apache-2.0
"""How long things take, learned from short real runs with one and two actors and their timelines,
or read from a file that was made elsewhere (on a machine with a GPU, say)."""

from __future__ import annotations

import json
import tempfile
import time
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

_TRIMMED = 0.05  # of the longest spans: somebody else had the core
_KEPT_SAMPLES = 400
_WAIT, _UPDATE = "wait", "learn"
_MOST = 0.5


@dataclass(frozen=True)
class Times:
    """Samples of seconds per pass by "kind/stage", and what goes with them."""

    samples: dict[str, list[float]]
    step_cpu_share: float = 1.0
    """Of the time that a step of the environments takes, how much needs a core."""
    infer_seconds_per_group: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of inference server: a and m of a + m * groups in one forward pass."""
    measured: list[dict[str, float]] = field(default_factory=list)
    """The runs they come from: actors, env steps per second, lag."""
    seconds_per_row: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By "kind/stage" of a learner: a and m of a + m * rows of an update, where batches of several
    sizes were seen."""

    def drawn(self, key: str, count: int, random: np.random.Generator) -> float:
        """The sum of `count` passes; 0 for what was never seen."""
        found = self.samples.get(key)
        if not found:
            return 0.0
        if count > 8:  # the sum of many is close to its mean
            return float(np.mean(found)) * count
        return float(sum(found[int(random.random() * len(found))] for _ in range(count)))

    def mean(self, key: str) -> float:
        found = self.samples.get(key)
        return float(np.mean(found)) if found else 0.0

    def growth(self, key: str, rows: int) -> float:
        """How many times as long a stage of an update takes with `rows` as in the samples."""
        if key not in self.seconds_per_row or not self.mean(key):
            return 1.0
        constant, slope = self.seconds_per_row[key]
        return (constant + slope * rows) / self.mean(key)

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
    """A short run that times are learned from."""

    actors: int
    rows: int
    """That an update learns from."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it has beyond the plan's own: its rate is then no measure of the plan."""


def calibrate(
    architecture: str, options: Mapping[str, Any], trials: Sequence[Trial], seconds: float
) -> Times:
    """Run the architecture for a while, trial by trial."""
    samples: dict[str, list[float]] = {}
    forward_passes: dict[str, list[tuple[float, float]]] = {}
    updates: dict[str, list[tuple[float, float]]] = {}
    measured = []
    for trial in trials:
        given = {**options, **trial.options, "num_actors": trial.actors}
        result, trace, last = _short_run(architecture, given, seconds)
        found = spans(trace)
        for key, lengths in found.items():
            # Those of one actor have a core each; more of them would count others' turns in.
            known = samples.setdefault(key, lengths)
            # A learner that is idle in between is slower, one that shares a core too.
            if key.endswith(f"/{_UPDATE}") and trial.rows == trials[0].rows:
                samples[key] = min(known, lengths, key=np.mean)
            if f"{key.split('/')[0]}/learn" in found:
                updates.setdefault(key, []).append((trial.rows, float(np.mean(lengths))))
        passes = last.get("counter/inference_batches")
        if passes:
            groups = last["counter/inference_requests"] / passes
            for key, lengths in found.items():
                if key.endswith("/infer") and not key.startswith(("actor/", "agent/")):
                    point = (groups, float(np.mean(lengths)))
                    forward_passes.setdefault(key.split("/")[0], []).append(point)
        if not trial.options:
            measured.append(
                {
                    "actors": trial.actors,
                    "env_steps_per_second": float(result.env_steps_per_second or 0.0),
                    "policy_lag": float(result.policy_lag["mean"] or 0.0),
                }
            )
    per_group = {kind: _line(points) for kind, points in forward_passes.items()}
    per_row = {
        key: _line(points)
        for key, points in updates.items()
        if len({rows for rows, _ in points}) > 1
    }
    return Times(samples, 1.0, per_group, measured, per_row)


def _short_run(
    architecture: str, options: Mapping[str, Any], seconds: float
) -> tuple[RunResult, dict[str, Any], dict[str, Any]]:
    """Its result, timeline and last metrics."""
    with tempfile.TemporaryDirectory(prefix="veldt-plan-") as folder:
        run_dir = Path(folder) / "run"
        given = {"device": "cpu", **options, "run_dir": str(run_dir)}
        result = train_from(
            architecture,
            {**given, "quiet": True, "max_seconds": seconds, "timeline": seconds / 2,
             "evaluation_episodes": 0, "backend": "process"},
        )  # fmt: skip
        trace = json.loads((run_dir / TIMELINE_FILE).read_text(encoding="utf-8"))
        return result, trace, metric_rows(run_dir)[-1]


def cpu_share(factory: EnvironmentFactory, width: int, seconds: float = 0.5) -> float:
    """How much of a step's time needs a core: environments that sleep or compute elsewhere do not
    need all of it."""
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
    """Seconds per pass by "kind/stage", and under "kind/other" what was not timed, per pass of the
    stage that comes most often."""
    lengths: dict[str, list[float]] = {}
    warm: dict[str, list[float]] = {}
    lanes: dict[int, float] = {}
    kinds: dict[int, str] = {}
    has_waited: dict[int, bool] = {}
    passed = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in sorted(passed, key=lambda event: float(event["ts"])):
        lane, length = event["tid"], event["dur"] / 1e6
        lanes[lane] = lanes.get(lane, 0.0) + length
        kinds[lane] = event["cat"]
        if event["name"] == _WAIT:
            has_waited[lane] = True
            continue
        key = f"{event['cat']}/{event['name']}"
        lengths.setdefault(key, []).append(length)
        if event["name"] == _UPDATE:
            if not has_waited.get(lane, True):
                warm.setdefault(key, []).append(length)
            has_waited[lane] = False
    seconds, found = trace["otherData"]["seconds"], {}
    for key, values in without_the_first_after_a_wait(lengths, warm).items():
        kept = np.sort(values)[: max(1, int((1 - _TRIMMED) * len(values)))]
        found[key] = np.random.default_rng(0).choice(kept, min(len(kept), _KEPT_SAMPLES)).tolist()
    for kind in set(kinds.values()):
        timed = [lanes[tid] for tid, own in kinds.items() if own == kind]
        passes = max(len(v) for k, v in lengths.items() if k.startswith(f"{kind}/"))
        idle = max(0.0, seconds * len(timed) - sum(timed))
        found[f"{kind}/other"] = [idle / max(1, passes)]
    return found


def without_the_first_after_a_wait(
    lengths: dict[str, list[float]], warm: dict[str, list[float]]
) -> dict[str, list[float]]:
    """Updates that follow each other, where most do: one after a wait finds its memory in no cache
    and takes up to half as long again. A learner that holds the others up does not wait."""
    most = {key: found for key, found in warm.items() if len(found) >= _MOST * len(lengths[key])}
    return {**lengths, **most}


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """a and m of a + m * groups; all of it fixed where only one size was seen."""
    sizes, seconds = (np.array(column) for column in zip(*points, strict=True))
    if np.ptp(sizes) < 0.2:
        return float(seconds.mean()), 0.0
    slope, constant = np.polyfit(sizes, seconds, 1)
    if slope < 0 or constant < 0:
        return float(seconds.mean()), 0.0
    return float(constant), float(slope)
