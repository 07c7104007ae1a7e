# SPDX-License-Identifier: Apache-2.0
"""The run's side of trackers: a process beside it reads metrics.jsonl and sends it on.

A tracker that is slow, offline or broken can so neither delay the run nor end it. The process's
standard input is its lifeline; on its standard output it says, a line each, what went wrong.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veldt.callbacks import Sidecar
from veldt.errors import ConfigurationError
from veldt.files import write_atomically
from veldt.telemetry.log_files import METRICS_FILE, JsonLines

STATE_FILE, LOG_FILE = "trackers.json", "trackers.log"
"""In the run directory: ids and how far each tracker has come; what their packages printed."""
PACKAGES = ("wandb", "mlflow")
"""Trackers that need a process."""
_EXTRAS = {"tensorboard": "tensorboard", "wandb": "trackers", "mlflow": "trackers"}
_GRACE_SECONDS = 10.0
_NICENESS = 5  # as actors have: training goes first


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that are not installed."""
    for name in names:
        if name in _EXTRAS and importlib.util.find_spec(name) is None:
            raise ConfigurationError(
                f"the tracker {name} needs an extra: pip install 'veldt[{_EXTRAS[name]}]'"
            )


def read_state(run_dir: Path) -> dict[str, Any]:
    """Nothing where nothing can be read."""
    try:
        found = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Trackers(Sidecar):
    """The process of those of `names` that need one; none if none does."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name for name in names if name in PACKAGES]
        self._child: subprocess.Popen[bytes] | None = None
        self._heard = b""

    @contextmanager
    def running(self, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
        """Send the run's metrics until the block is left."""
        self._run_dir, self._note = run_dir, note
        if not self._names:
            yield
            return
        try:
            self._child = self._start()
        except OSError as error:
            self._note(f"no tracker was started, training continues: {error}")
        try:
            yield
        finally:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        module = ("-m", "veldt.trackers.sending")
        with open(self._run_dir / LOG_FILE, "ab") as log:
            child = subprocess.Popen(
                [sys.executable, *module, os.path.abspath(self._run_dir), ",".join(self._names)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C is for the run; its end is still to be sent
            )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        return child

    def poll(self) -> None:
        """Pass on what the process has to say; that it is gone, once."""
        if self._child is None:
            return
        assert self._child.stdout is not None
        self._hear(self._child.stdout.read() or b"")
        if self._child.poll() is not None:
            self._note(
                f"the trackers' process ended with {self._child.returncode}, training continues:"
                f" see {self._run_dir / LOG_FILE}"
            )
            self._child = None

    def _hear(self, said: bytes) -> None:
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            self._note(line.decode(errors="replace"))

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), True)
        try:
            # Written to before it is closed: processes forked by environments may hold the pipe.
            said, _ = child.communicate(b"end", _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            said += (
                f"{', '.join(self._names)} had not taken everything after {_GRACE_SECONDS:.0f} s;"
                " the rest is in metrics.jsonl\n"
            ).encode()
        self._hear(said)
