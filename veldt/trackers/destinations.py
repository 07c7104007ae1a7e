# SPDX-License-Identifier: Apache-2.0
"""One run on W&B or on MLflow. The packages' own environment variables apply."""

from __future__ import annotations

import math
import os
import re
import secrets
from pathlib import Path
from typing import Any, Protocol

_MLFLOW_LONGEST_PARAMETER = 500
_MLFLOW_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""Short, because the forwarder retries later anyway."""

Line = dict[str, Any]
State = dict[str, Any]
"""What a tracker needs to continue: its `id`, its last `env_steps`, and the place of the run."""


class Destination(Protocol):
    """One run of one tracker."""

    def open(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
        """Begin a run and note it in `state`, or continue the one that `state` names."""

    def send(self, lines: list[Line]) -> None: ...

    def close(self, succeeded: bool) -> None: ...


class WandbRun:
    """Curves over env steps, because W&B's own steps count lines."""

    def open(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
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
    """Metrics over env steps; the options of the run are its parameters."""

    def open(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
        for name, value in _MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        folder = (Path.cwd() / "mlruns").as_uri()
        state.setdefault("uri", os.environ.get("MLFLOW_TRACKING_URI") or folder)
        if state["uri"].startswith("file:") or "://" not in state["uri"]:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(state["uri"])
        if "id" in state:
            self._client.update_run(state["id"], status="RUNNING")
        else:
            state["id"] = self._begin(run_dir.name, config)
        self._id: str = state["id"]

    def _begin(self, name: str, config: dict[str, Any]) -> str:
        """Create a run in the experiment; returns its id."""
        from mlflow.entities import Param

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "veldt")
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        architecture = str(config["architecture"])
        run = self._client.create_run(
            number, run_name=name, tags={"veldt.architecture": architecture}
        )
        options = {"architecture": architecture, **config["options"], **config["config"]}
        params = [
            Param(_allowed(key), str(value)[:_MLFLOW_LONGEST_PARAMETER])
            for key, value in options.items()
        ]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

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


DESTINATIONS: dict[str, type[Destination]] = {"wandb": WandbRun, "mlflow": MlflowRun}


def _metrics(line: Line) -> dict[str, float]:
    """The finite numbers of a line of metrics.jsonl, without its position."""
    return {
        name: value
        for name, value in line.items()
        if name not in ("time", "env_steps")
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _allowed(name: str) -> str:
    """The name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ ]", "_", name)
