# SPDX-License-Identifier: Apache-2.0
"""A run on W&B. What its own variables say (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY) holds."""

from __future__ import annotations

import math
import os
import secrets
from pathlib import Path
from typing import Any


class WandbRun:
    """Curves over env steps: W&B's own steps only count the lines."""

    def open(self, run_dir: Path, config: dict[str, Any], state: dict[str, Any]) -> None:
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
                x_disable_stats=True,  # of this process, which does nothing; the run's are in line
            ),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def send(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._run.log(
                {
                    name: value
                    for name, value in line.items()
                    if isinstance(value, int | float) and math.isfinite(value) and name != "time"
                }
            )

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
