# SPDX-License-Identifier: Apache-2.0
"""Finished runs read from their files, and the machine."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import veldt
from veldt.architectures import label
from veldt.compare.runs import RunTask, contestant_label, finished
from veldt.compare.statistics import Estimate, estimate
from veldt.compare.traffic import actor_traffic
from veldt.errors import ConfigurationError
from veldt.resources import usable_cores
from veldt.telemetry.counters import LAG_BINS
from veldt.telemetry.log_files import EVALUATION, EVALUATION_ENV_STEPS, metric_rows
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE, STATUS_FILE
from veldt.telemetry.result import RunResult, dumps
from veldt.topology import Topology

RETURN = "return/mean_100"
_TRAINED = "counter/trained_env_steps"
_MOST_SHOWN = 4  # options in a name; with more, the name of the first run's folder
_OF_ONE_RUN = {"seed", "run_dir", "quiet", "json", "dashboard", "trackers", "timeline", "from_run"}
_LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py", "envpool", "ray")
COST_COLUMNS = ("system", "bytes up per step", "bytes down per step", "actors wait",
                "learners wait", "lag (updates)", "env steps/s")  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One finished run."""

    task: RunTask
    result: RunResult
    rows: list[dict[str, Any]]

    def curve(self, over: str, metric: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
        """A metric, by default the mean of 100 episodes, over "env_steps" or "seconds"."""
        rows = [row for row in self.rows if row.get(metric) is not None]
        values = np.array([float(row[metric]) for row in rows])
        if over == "env_steps":
            # An evaluation ends when training is further on than the weights it plays with.
            age = EVALUATION_ENV_STEPS if metric == EVALUATION else "env_steps"
            return np.array([row[age] for row in rows], float), values
        # The last row is written when the run's wall seconds are taken.
        began = self.rows[-1]["time"] - self.result.wall_seconds if self.rows else 0.0
        return np.array([row["time"] - began for row in rows], float), values

    @property
    def replay_ratio(self) -> float:
        """How often an env step was trained on, on average: 1 with one pass and no replay."""
        last, updates = self.rows[-1] if self.rows else {}, self.result.updates
        if not (self.result.env_steps and updates):
            return np.nan
        steps = _number(last.get("counter/gradient_steps")) / updates
        passes = min(self.config.get("epochs", 1), steps / self.config.get("minibatches", 1))
        return _number(last.get(_TRAINED)) * max(passes, 1.0) / self.result.env_steps

    @property
    def config(self) -> dict[str, Any]:
        """The architecture's own options."""
        config: dict[str, Any] = _stored(self.task.run_dir)["config"]
        return config

    @property
    def lag_histogram(self) -> np.ndarray:
        found = self.result.policy_lag.get("histogram") or []
        return np.pad(np.asarray(found, dtype=float), (0, LAG_BINS - len(found)))


Records = dict[str, list[Record]]
"""Finished runs by the label of their architecture, in the order of the comparison."""


def collect(todo: list[RunTask]) -> Records:
    records: Records = {}
    for task in todo:
        result = finished(task)
        if result is not None:
            record = Record(task, result, metric_rows(task.run_dir))
            records.setdefault(contestant_label(task.contestant), []).append(record)
    return records


def _stored(run_dir: Path) -> dict[str, Any]:
    """The content of config.json."""
    content: dict[str, Any] = json.loads((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    return content


def existing(run_dirs: Iterable[str]) -> Records:
    """Runs that exist, by architecture and the options in which they differ, but the seed."""
    found: list[tuple[Record, dict[str, str]]] = []
    for run_dir in map(Path, run_dirs):
        try:
            stored = _stored(run_dir)
            given = {**stored["options"], **stored["config"]}
            name, rows = str(stored["architecture"]), metric_rows(run_dir)
            for group in [n for n, each in given.items() if isinstance(each, dict)]:
                given |= {f"{group} {key}": each for key, each in given.pop(group).items()}
            texts = {n: dumps(each).strip('"') for n, each in given.items() if n not in _OF_ONE_RUN}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{run_dir} holds no run; name directories of runs") from error
        if (run_dir / RESULT_FILE).exists():
            result = RunResult.load(run_dir / RESULT_FILE)
        else:  # it still runs, or was killed
            seconds = rows[-1]["time"] - rows[0]["time"] if rows else 0.0
            steps = rows[-1]["env_steps"] if rows else 0
            result = RunResult(name, given["env"], given["backend"], given["seed"], steps)
            result.wall_seconds = seconds
        task = RunTask(name, result.seed, run_dir, {})
        found.append((Record(task, result, rows), texts))
    records: dict[str, list[Record]] = {}
    titles: dict[str, str] = {}
    for record, texts in found:
        name = record.result.architecture
        alike = [other for each, other in found if each.result.architecture == name]
        own = [f"{n}={text}" for n, text in texts.items() if any(o.get(n) != text for o in alike)]
        if any(other["env"] != texts["env"] for _, other in found):
            own = [texts["env"], *(text for text in own if not text.startswith("env="))]
        shown = own if len(own) <= _MOST_SHOWN else [record.task.run_dir.name]
        title = titles.setdefault(" ".join([name, *own]), " ".join([label(name), *shown]))
        records.setdefault(title, []).append(record)
    return records


def over_seeds(runs: list[Record], value: Callable[[Record], float | None]) -> Estimate | None:
    """The estimate over seeds whose value is known; None without any."""
    numbers = [_number(value(run)) for run in runs]
    known = [number for number in numbers if np.isfinite(number)]
    return estimate(np.array(known)) if known else None


def write_csv(path: Path, records: Records) -> None:
    """One line per run, with the fields of its result.json that are numbers or words."""
    lines = [
        {
            **{k: v for k, v in vars(run.result).items() if not isinstance(v, dict | list)},
            "policy_lag_mean": run.result.policy_lag.get("mean"),
            "policy_lag_max": run.result.policy_lag.get("max"),
            "replay_ratio": run.replay_ratio if np.isfinite(run.replay_ratio) else None,
            "command": run.task.command if run.task.options else run.result.command,
        }
        for runs in records.values()
        for run in runs
    ]
    with open(path, "w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for line in lines for name in line)
        writer = csv.DictWriter(file, fieldnames=list(names))
        writer.writeheader()
        writer.writerows(lines)


def costs(records: Records, topologies: dict[str, Topology]) -> dict[str, dict[str, Any]]:
    """Bytes per env step, waiting and lag of each system, counted in its first seed's run."""
    found = {}
    for name, (run, *_) in records.items():
        if name not in topologies:
            continue
        result, kinds = run.result, topologies[name].kinds()
        status = json.loads((run.task.run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        counters = {nodes[0].name: status["rates"].get(kind, {}) for kind, nodes in kinds.items()}
        up, down = actor_traffic(topologies[name], counters)
        found[name] = {
            "bytes_up_per_env_step": up,
            "bytes_down_per_env_step": down,
            "waits": {kind: shares.get("wait") for kind, shares in result.stage_shares.items()},
            "policy_lag": result.policy_lag.get("mean"),
            "env_steps_per_second": result.env_steps_per_second,
            "command": run.task.command,
        }
    return found


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


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def machine() -> dict[str, Any]:
    """Hardware and versions of libraries."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.release()}",
        "load average": f"{os.getloadavg()[0]:.2f} when the report was made",
        "python": platform.python_version(),
        "veldt": veldt.__version__,
        **versions(_LIBRARIES),
    }


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for library in libraries:
        with suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found


def cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
