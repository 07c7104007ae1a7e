# SPDX-License-Identifier: Apache-2.0
"""What finished runs left behind, read from result.json, metrics.jsonl and memory.json."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veldt.architectures import label
from veldt.compare.runs import MEMORY_FILE, RunTask, finished
from veldt.compare.statistics import Estimate, estimate
from veldt.environments import EnvironmentFactory
from veldt.telemetry import rates
from veldt.telemetry.result import RunResult

_RETURN, _TRAINED = "return/mean_100", "counter/trained_env_steps"
_WIDTHS = (8, 64, 256)
_CSV_NAMES = (
    "architecture",
    "seed",
    "env",
    "backend",
    "env_steps",
    "updates",
    "episodes",
    "wall_seconds",
    "start_seconds",
    "env_steps_per_second",
    "mean_return_100",
    "evaluation_return",
    "reached_target",
    "seconds_to_target",
    "stopped_by",
    "restarts",
)


@dataclass(frozen=True)
class Record:
    """One finished run."""

    task: RunTask
    result: RunResult
    rows: list[dict[str, Any]]
    peak_memory_bytes: int | None

    def curve(self, over: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean return of the last 100 training episodes over "env_steps" or "seconds"."""
        returns = [_number(row.get(_RETURN)) for row in self.rows]
        if over == "env_steps":
            return np.array([row["env_steps"] for row in self.rows], float), np.array(returns)
        # The last row is written when the run's wall seconds are taken.
        began = self.rows[-1]["time"] - self.result.wall_seconds if self.rows else 0.0
        return np.array([row["time"] - began for row in self.rows], float), np.array(returns)

    @property
    def replay_ratio(self) -> float:
        """How often an env step was learned from on average; about 1 without a replay."""
        trained = _number(self.rows[-1].get(_TRAINED)) if self.rows else np.nan
        return trained / self.result.env_steps if self.result.env_steps else np.nan

    @property
    def lag_histogram(self) -> np.ndarray:
        return np.asarray(self.result.policy_lag.get("histogram") or [], dtype=float)


Records = dict[str, list[Record]]
"""Finished runs by label of their architecture, in the order of the comparison."""


def collect(todo: list[RunTask]) -> Records:
    records: Records = {}
    for task in todo:
        result = finished(task)
        if result is not None:
            record = Record(task, result, metric_rows(task.run_dir), _peak_memory(task.run_dir))
            records.setdefault(label(task.architecture), []).append(record)
    return records


def over_seeds(runs: list[Record], value: Callable[[Record], float | None]) -> Estimate | None:
    """The estimate over the seeds whose value is known; None when none is."""
    numbers = [_number(value(run)) for run in runs]
    known = [number for number in numbers if np.isfinite(number)]
    return estimate(np.array(known)) if known else None


def write_csv(path: Path, records: Records) -> None:
    """One line per run."""
    lines = [_csv_line(run) for runs in records.values() for run in runs]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else ["architecture"])
        writer.writeheader()
        writer.writerows(lines)


def _csv_line(run: Record) -> dict[str, Any]:
    result = run.result
    return {
        **{name: getattr(result, name) for name in _CSV_NAMES},
        "policy_lag_mean": result.policy_lag.get("mean"),
        "policy_lag_max": result.policy_lag.get("max"),
        "replay_ratio": run.replay_ratio if np.isfinite(run.replay_ratio) else None,
        "peak_memory_bytes": run.peak_memory_bytes,
        "command": run.task.command,
    }


def env_ceiling(factory: EnvironmentFactory, width: int, seconds: float) -> dict[str, float]:
    """Env steps per second of one process with random actions and nothing else, at its best width
    among a few and the one that actors have."""
    widths = sorted({width, *_WIDTHS})
    rates = {each: _env_rate(factory, each, seconds / len(widths)) for each in widths}
    best = max(rates, key=lambda each: rates[each])
    return {"envs": best, "env_steps_per_second": rates[best]}


def _env_rate(factory: EnvironmentFactory, width: int, seconds: float) -> float:
    environment = factory.make(width, seed=0)
    random = np.random.default_rng(0)
    try:
        environment.reset()
        actions = [environment.random_actions(random) for _ in range(16)]
        environment.step(actions[0])
        steps, calls, begun = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < seconds or not steps:
            # With masks old actions may be forbidden, so those are drawn anew and timed.
            masked = environment.spec.action_mask_size > 0
            action = environment.random_actions(random) if masked else actions[calls % 16]
            steps += environment.step(action).env_steps
            calls += 1
    finally:
        environment.close()
    return steps / max(elapsed, 1e-9)


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; none where there is no such file."""
    try:
        text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def steady_rate(rows: list[dict[str, Any]], counter: str) -> float:
    """Increase of a counter per second since the run settled; NaN where too little is known."""
    counts = [_number(row.get(counter, 0)) for row in rows]
    return rates.steady_rate(
        [row["time"] for row in rows], [row["updates"] for row in rows], counts
    )


def _peak_memory(run_dir: Path) -> int | None:
    try:
        return json.loads((run_dir / MEMORY_FILE).read_text(encoding="utf-8"))["peak_memory_bytes"]
    except (OSError, ValueError, KeyError):
        return None


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
