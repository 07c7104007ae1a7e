# SPDX-License-Identifier: Apache-2.0
"""What finished runs left behind, read from result.json and metrics.jsonl."""

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
from veldt.compare.runs import RunTask, finished
from veldt.compare.statistics import Estimate, estimate
from veldt.environments import EnvironmentFactory
from veldt.telemetry.aggregate import actor_traffic
from veldt.telemetry.log_files import metric_rows
from veldt.telemetry.record import STATUS_FILE
from veldt.telemetry.result import RunResult
from veldt.topology import Topology

_RETURN, _TRAINED = "return/mean_100", "counter/trained_env_steps"
_WIDTHS = (8, 64, 256)
_CSV_NAMES = (
    *("architecture", "seed", "env", "backend", "env_steps", "updates", "episodes"),
    *("wall_seconds", "start_seconds", "env_steps_per_second", "mean_return_100"),
    *("evaluation_return", "reached_target", "seconds_to_target", "stopped_by", "restarts"),
)
COST_COLUMNS = ("system", "bytes up per step", "bytes down per step", "actors wait",
                "learners wait", "lag (updates)", "env steps/s")  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One finished run."""

    task: RunTask
    result: RunResult
    rows: list[dict[str, Any]]

    def curve(self, over: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean return of the last 100 training episodes over "env_steps" or "seconds"."""
        returns = np.array([_number(row.get(_RETURN)) for row in self.rows])
        if over == "env_steps":
            return np.array([row["env_steps"] for row in self.rows], float), returns
        # The last row is written when the run's wall seconds are taken.
        began = self.rows[-1]["time"] - self.result.wall_seconds if self.rows else 0.0
        return np.array([row["time"] - began for row in self.rows], float), returns

    @property
    def replay_ratio(self) -> float:
        """Mean number of times an env step was learned from; about 1 without a replay."""
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
            record = Record(task, result, metric_rows(task.run_dir))
            records.setdefault(label(task.architecture), []).append(record)
    return records


def over_seeds(runs: list[Record], value: Callable[[Record], float | None]) -> Estimate | None:
    """The estimate over seeds whose value is known; None without any."""
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
    return {
        **{name: getattr(run.result, name) for name in _CSV_NAMES},
        "policy_lag_mean": run.result.policy_lag.get("mean"),
        "policy_lag_max": run.result.policy_lag.get("max"),
        "replay_ratio": run.replay_ratio if np.isfinite(run.replay_ratio) else None,
        "command": run.task.command,
    }


def costs(records: Records, topologies: dict[str, Topology]) -> dict[str, dict[str, Any]]:
    """Bytes per env step, waiting and lag of each system, counted in its first seed's run."""
    return {name: _costs(runs[0], topologies[name]) for name, runs in records.items() if runs}


def _costs(run: Record, topology: Topology) -> dict[str, Any]:
    result = run.result
    status = json.loads((run.task.run_dir / STATUS_FILE).read_text(encoding="utf-8"))
    rates = status.get("rates", {})
    counters = {nodes[0].name: rates.get(kind, {}) for kind, nodes in topology.kinds().items()}
    up, down = actor_traffic(topology, counters)
    return {
        "bytes_up_per_env_step": up,
        "bytes_down_per_env_step": down,
        "waits": {kind: shares.get("wait") for kind, shares in result.stage_shares.items()},
        "policy_lag": result.policy_lag.get("mean"),
        "env_steps_per_second": result.env_steps_per_second,
        "command": run.task.command,
    }


def cost_cells(name: str, row: dict[str, Any]) -> list[str]:
    """The row of one system, for COST_COLUMNS."""
    waits = row["waits"]
    actors = next((waits[kind] for kind in ("actor", "agent") if kind in waits), None)
    learners = next((waits[kind] for kind in ("learner", "trainer") if kind in waits), None)
    lag, rate = row["policy_lag"], row["env_steps_per_second"]
    return [
        name,
        f"{row['bytes_up_per_env_step']:,.0f}",
        f"{row['bytes_down_per_env_step']:,.0f}",
        *("-" if share is None else f"{share:.0%}" for share in (actors, learners)),
        "-" if lag is None else f"{lag:.1f}",
        "-" if rate is None else f"{rate:,.0f}",
    ]


def env_ceiling(factory: EnvironmentFactory, width: int, seconds: float) -> dict[str, float]:
    """Env steps per second of one process that only steps environments with random actions.

    The best of a few numbers of environments and of `width`, the number that actors have."""
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
            # Old actions may be masked now, so those are drawn again.
            masked = environment.spec.action_mask_size > 0
            action = environment.random_actions(random) if masked else actions[calls % 16]
            steps += environment.step(action).env_steps
            calls += 1
    finally:
        environment.close()
    return steps / max(elapsed, 1e-9)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
