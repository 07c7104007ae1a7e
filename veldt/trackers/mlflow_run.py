# SPDX-License-Identifier: Apache-2.0
"""A run on MLflow. Its own variables hold (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME); without a
server it is the folder mlruns where the run was started."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""A server that is gone is asked again later anyway."""
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE = 1000, 100
_LONGEST_PARAMETER = 500


class MlflowRun:
    """Metrics by env steps; the run's options are its parameters."""

    def open(self, run_dir: Path, config: dict[str, Any], state: dict[str, Any]) -> None:
        for name, value in _QUICK.items():
            os.environ.setdefault(name, value)
        state.setdefault("uri", os.environ.get("MLFLOW_TRACKING_URI") or _folder())
        if state["uri"].startswith("file:") or "://" not in state["uri"]:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(state["uri"])
        if "id" in state:
            self._client.update_run(state["id"], status="RUNNING")
        else:
            state["id"] = _begin(self._client, run_dir.name, config)
        self._id: str = state["id"]

    def send(self, lines: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_tidy(name), float(value), round(1000 * line["time"]), line["env_steps"])
            for line in lines
            for name, value in line.items()
            if isinstance(value, int | float) and math.isfinite(value)
            if name not in ("time", "env_steps")
        ]
        for part in _parts(metrics, _METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=part)

    def close(self, succeeded: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "KILLED")


def _folder() -> str:
    return (Path.cwd() / "mlruns").as_uri()


def _begin(client: MlflowClient, name: str, config: dict[str, Any]) -> str:
    """Make a run in the experiment; its id."""
    from mlflow.entities import Param

    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "veldt")
    found = client.get_experiment_by_name(experiment)
    home = client.create_experiment(experiment) if found is None else found.experiment_id
    architecture = str(config["architecture"])
    run = client.create_run(home, run_name=name, tags={"veldt.architecture": architecture})
    options = {"architecture": architecture, **config["options"], **config["config"]}
    params = [Param(_tidy(key), str(value)[:_LONGEST_PARAMETER]) for key, value in options.items()]
    for part in _parts(params, _PARAMETERS_AT_ONCE):
        client.log_batch(run.info.run_id, params=part)
    identity: str = run.info.run_id
    return identity


def _tidy(name: str) -> str:
    """With the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ ]", "_", name)


def _parts(entries: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]
