# SPDX-License-Identifier: Apache-2.0
"""The directory of one run: made, locked and described before anything starts."""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any

from veldt.errors import ConfigurationError
from veldt.files import write_atomically
from veldt.telemetry.result import dumps

CONFIG_FILE, RESULT_FILE, CHECKPOINTS = "config.json", "result.json", "checkpoints"


class RunDirectory:
    """An exclusive hold on RUN_DIR; the kernel lets go of it when this process ends, however."""

    def __init__(self, path: str | None, architecture: str, env: str, resume: bool = False) -> None:
        self.path = Path(path) if path else _default_path(architecture, env)
        if not resume and (self.path / CONFIG_FILE).exists() and not _in_use(self.path):
            raise ConfigurationError(
                f"{self.path} already holds a run; choose another --run-dir or 'veldt resume' it"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to run directory {self.path} ({error.strerror}); choose another"
                " with --run-dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ConfigurationError(
                f"run directory {self.path} is in use by another run; choose another --run-dir"
            ) from error

    def write_config(self, config: dict[str, Any]) -> None:
        write_atomically(self.path / CONFIG_FILE, dumps(config) + "\n")

    @property
    def result(self) -> Path:
        return self.path / RESULT_FILE

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def close(self) -> None:
        os.close(self._lock)


def _in_use(path: Path) -> bool:
    try:
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _default_path(architecture: str, env: str) -> Path:
    tidy = re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{architecture}-{tidy}-{stamp}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
