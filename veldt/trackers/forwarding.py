# SPDX-License-Identifier: Apache-2.0
"""The process that follows metrics.jsonl and sends new lines to W&B and MLflow.

A line is sent if it has more env steps than the last one sent, so the curve of a run that was
killed and resumed continues where it ended, under the same id. The packages' own environment
variables apply.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from veldt.files import lock, write_atomically
from veldt.telemetry.log_files import METRICS_FILE, Guard, JsonLines, tag
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE, STATUS_FILE
from veldt.trackers.child import STATE_FILE, read_state

_POLL_SECONDS = 1.0
_RETRY_SECONDS = 30.0
_PREDECESSOR_SECONDS = 60.0
_LINES_AT_ONCE = 200
_MLFLOW_LONGEST_PARAMETER = 500
_MLFLOW_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""Short, because the forwarder retries later anyway."""

Line = dict[str, Any]
State = dict[str, Any]
"""What a tracker needs to continue: its `id`, its last `env_steps`, and the place of the run."""


class WandbRun:
    """A run on W&B. Curves are over env steps, because W&B's own steps count lines."""

    def __init__(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
        import wandb

        state.setdefault("id", secrets.token_hex(4))
        self._run = wandb.init(
            id=state["id"],
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "veldt"),
            name=os.environ.get("WANDB_NAME", run_dir.name),
            dir=os.environ.get("WANDB_DIR", str(run_dir)),
            config=config,
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,  # of the forwarder, which does nothing
            ),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def send(self, lines: list[Line]) -> None:
        for line in lines:
            self._run.log({"env_steps": line["env_steps"], **_metrics(line)})

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


class MlflowRun:
    """A run on MLflow: metrics over env steps; the options of the run are its parameters."""

    def __init__(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
        for name, value in _MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        folder = (Path.cwd() / "mlruns").as_uri()
        state.setdefault("uri", os.environ.get("MLFLOW_TRACKING_URI") or folder)
        if state["uri"].startswith("file:") or "://" not in state["uri"]:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(state["uri"])
        self._id: str
        if "id" in state:
            self._id = state["id"]
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "veldt")
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        architecture = str(config["architecture"])
        tags = {"veldt.architecture": architecture}
        run = self._client.create_run(number, run_name=run_dir.name, tags=tags)
        options = {"architecture": architecture, **config["options"], **config["config"]}
        params = [
            Param(_allowed(key), str(value)[:_MLFLOW_LONGEST_PARAMETER])
            for key, value in options.items()
        ]
        self._id = str(run.info.run_id)
        self._client.log_batch(self._id, params=params)
        state["id"] = self._id

    def send(self, lines: list[Line]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_allowed(name), float(value), round(1000 * line["time"]), line["env_steps"])
            for line in lines
            for name, value in _metrics(line).items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, succeeded: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "KILLED")


_TRACKERS: dict[str, type[WandbRun] | type[MlflowRun]] = {"wandb": WandbRun, "mlflow": MlflowRun}


def _metrics(line: Line) -> dict[str, float]:
    """The finite numbers of a line of metrics.jsonl, without its position."""
    return {
        tag(name): value
        for name, value in line.items()
        if name not in ("time", "env_steps")
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _allowed(name: str) -> str:
    """The name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ ]", "_", name)


class MetricsForwarder:
    """Brings one tracker up to date; lines that it refuses are kept and sent again later."""

    def __init__(self, name: str, run_dir: Path, state: State, save: Callable[[], None]) -> None:
        self._name, self._run_dir, self._state, self._save = name, run_dir, state, save
        self._guard = Guard(report)
        self._tracker: WandbRun | MlflowRun | None = None
        self._next_attempt = 0.0
        self._newest = state.get("env_steps", -1)
        self._lines: list[Line] = []
        """Not sent yet."""

    def add(self, lines: list[Line]) -> None:
        for line in lines:
            if line["env_steps"] > self._newest:
                self._newest = line["env_steps"]
                self._lines.append(line)

    def send(self, now: float) -> None:
        if now >= self._next_attempt:
            self._next_attempt = now + _RETRY_SECONDS  # unless it succeeds
            self._guard(f"the tracker {self._name}", self._send)

    def _send(self) -> None:
        if self._tracker is None:
            config = json.loads((self._run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
            self._tracker = _TRACKERS[self._name](self._run_dir, config, self._state)
            self._save()
        while self._lines:
            part = self._lines[:_LINES_AT_ONCE]
            self._tracker.send(part)
            self._state["env_steps"] = part[-1]["env_steps"]
            self._save()
            del self._lines[:_LINES_AT_ONCE]
        self._next_attempt = 0.0

    def close(self, succeeded: bool) -> None:
        self._next_attempt = 0.0
        self.send(time.monotonic())
        if self._tracker is not None:
            self._guard(f"the tracker {self._name}", self._tracker.close, succeeded)


def report(text: str) -> None:
    """Send the run one line."""
    print(" ".join(text.split())[:400], flush=True)


def forward(run_dir: Path, names: list[str]) -> None:
    """Send metrics until the run or its process ends."""
    parent = os.getppid()
    # The process of a killed run may still be sending its last lines.
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while lock(run_dir / ".trackers.lock") is None and time.monotonic() < deadline:
        time.sleep(0.1)
    states = read_state(run_dir)

    def save() -> None:
        write_atomically(run_dir / STATE_FILE, json.dumps(states, indent=2) + "\n")

    forwarders = [
        MetricsForwarder(name, run_dir, states.setdefault(name, {}), save) for name in names
    ]
    metrics = JsonLines(run_dir / METRICS_FILE)
    is_running = True
    while is_running:
        stop_requested, _, _ = select.select([0], [], [], _POLL_SECONDS)
        is_running = not stop_requested and os.getppid() == parent
        lines, _ = metrics.new_lines()
        for forwarder in forwarders:
            forwarder.add(lines)
            if is_running:
                forwarder.send(time.monotonic())
    for forwarder in forwarders:
        forwarder.close(_has_succeeded(run_dir))


def _has_succeeded(run_dir: Path) -> bool:
    """Whether the run has ended, neither by a failure nor by an interrupt."""
    try:
        status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        result = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return status["state"] == "ended" and result["stopped_by"] not in ("failure", "interrupt")


if __name__ == "__main__":
    # Output of the packages must not reach the run as a message.
    messages = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(messages, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    forward(Path(sys.argv[1]), sys.argv[2].split(","))
