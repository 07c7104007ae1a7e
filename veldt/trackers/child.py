# SPDX-License-Identifier: Apache-2.0
"""Starts and watches the process that sends a run's metrics to W&B and MLflow.

A slow or failing tracker can therefore neither delay the run nor end it. The process ends when its
standard input does; each line of its standard output is a problem to report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veldt.callbacks import Sidecar
from veldt.errors import ConfigurationError, install

STATE_FILE, LOG_FILE = "trackers.json", "trackers.log"
"""In the run directory: ids and progress of each tracker; output of their packages."""
_EXTRAS = {"tensorboard": "tensorboard", "wandb": "trackers", "mlflow": "trackers"}
_GRACE_SECONDS = 10.0
_NICENESS = 5  # as actors have


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that are not installed."""
    for name in names:
        if name in _EXTRAS and importlib.util.find_spec(name) is None:
            raise ConfigurationError(f"the tracker {name} needs an extra: {install(_EXTRAS[name])}")


def read_state(run_dir: Path) -> dict[str, Any]:
    """State of each tracker by name; empty if there is none or it cannot be read."""
    try:
        found = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Trackers(Sidecar):
    """The process for those of `names` that need one; does nothing if none does."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name for name in names if name in ("wandb", "mlflow")]
        self._child: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
        """Send the run's metrics until the block ends."""
        self._run_dir, self._note = run_dir, note
        if self._names:
            try:
                self._child = self._start()
            except OSError as error:
                self._note(f"no tracker was started, training continues: {error}")
        try:
            yield
        finally:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        module = ("-m", "veldt.trackers.forwarding")
        with open(self._run_dir / LOG_FILE, "ab") as log:
            child = subprocess.Popen(
                [sys.executable, *module, os.path.abspath(self._run_dir), ",".join(self._names)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C ends the run first, whose last lines are still sent
            )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        return child

    def poll(self) -> None:
        """Report messages of the process and, once, that it has ended early."""
        if self._child is None:
            return
        assert self._child.stdout is not None
        self._report(self._child.stdout.read() or b"")
        if self._child.poll() is not None:
            self._note(
                f"the trackers' process ended with {self._child.returncode}, training continues:"
                f" see {self._run_dir / LOG_FILE}"
            )
            self._child = None

    def _report(self, output: bytes) -> None:
        # Lines are whole, because a pipe takes one of at most 400 characters at once.
        for line in output.decode(errors="replace").splitlines():
            self._note(line)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            # Data and not only a close, because forked environments may hold the pipe open.
            output, _ = child.communicate(b"end", _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            self._note(
                f"{', '.join(self._names)} had not taken everything after {_GRACE_SECONDS:.0f} s;"
                " the rest is in metrics.jsonl"
            )
        self._report(output)
