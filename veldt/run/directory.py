# SPDX-License-Identifier: Apache-2.0
"""The directory of one run: made, locked and described before anything starts."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veldt.errors import ConfigurationError
from veldt.files import lock, write_atomically
from veldt.remote.places import is_remote, local_copy
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE
from veldt.telemetry.result import dumps

if TYPE_CHECKING:
    from veldt.run.plan import Plan

CHECKPOINTS = "checkpoints"


class RunDirectory:
    """An exclusive hold on RUN_DIR; the kernel lets go of it when this process ends, however."""

    def __init__(
        self,
        path: str | None,
        architecture: str,
        env: str,
        resume: bool = False,
        base: Path | None = None,
    ) -> None:
        base = base or Path.cwd()
        given = Path(path) if path else _default_path(base, architecture, env)
        self.shown = str(given)
        """As it was given, for people."""
        if is_remote(path):
            self.shown, given = str(path), local_copy(str(path))
        self.path = base / given
        """From the root: an environment may change the working directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = lock(self.path / ".lock")
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to run directory {self.path} ({error.strerror}); choose another"
                " with --run-dir"
            ) from error
        if held is None:
            raise ConfigurationError(
                f"run directory {self.path} is in use by another run; choose another --run-dir"
            )
        self._lock = held
        if not resume and (self.path / CONFIG_FILE).exists():
            self.close()
            raise ConfigurationError(
                f"{self.path} already holds a run; choose another --run-dir, or resume it with"
                " 'veldt resume'"
            )

    def write_config(self, config: dict[str, Any]) -> None:
        try:
            write_atomically(self.path / CONFIG_FILE, dumps(config) + "\n", durable=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write {self.path / CONFIG_FILE} ({error.strerror}); choose another"
                " --run-dir"
            ) from error

    @property
    def result(self) -> Path:
        return self.path / RESULT_FILE

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def close(self) -> None:
        os.close(self._lock)


def directory_of(plan: Plan, resume: bool, base: Path | None) -> RunDirectory:
    """The directory of one run."""
    options, env = plan.options, plan.problem.environment.name
    architecture = plan.topology.architecture
    return RunDirectory(options.run_dir, architecture, env, resume, base)


def _default_path(base: Path, architecture: str, env: str) -> Path:
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    first = Path("runs") / f"{architecture}-{tidy}-{stamp}"
    path, number = first, 1
    while (base / path).exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path
