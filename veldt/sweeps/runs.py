# SPDX-License-Identifier: Apache-2.0
"""The runs of a sweep: `veldt train` processes, watched through what they write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from veldt.files import write_atomically
from veldt.telemetry.record import RESULT_FILE, STATUS_FILE
from veldt.telemetry.result import RunResult, dumps

_FINISHED = ("target", "env_steps", "seconds")
_PATIENCE_SECONDS = 20.0  # a run that is asked to end writes a checkpoint first
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class TrialFiles:
    """What lies in the sweep's folder about one trial: its run, and files beside it."""

    run_dir: Path

    def beside(self, suffix: str) -> Path:
        return self.run_dir.with_name(f"{self.run_dir.name}.{suffix}")

    def result(self) -> RunResult | None:
        """What the run has come to; None before its end."""
        try:
            return RunResult.load(self.run_dir / RESULT_FILE)
        except (OSError, ValueError, TypeError):
            return None

    def finished(self) -> RunResult | None:
        """The same, if it has used its budget or reached the target."""
        result = self.result()
        return result if result is not None and result.stopped_by in _FINISHED else None

    def end_leftover(self) -> None:
        """End the run of a sweep that was killed, if it is still there."""
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            stored = json.loads(self.beside("pid").read_text(encoding="utf-8"))
            process = psutil.Process(stored["pid"])
            if process.create_time() == stored["created"]:
                _end(process.pid, lambda: not process.is_running() or _is_zombie(process))


def _is_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def score_of(result: RunResult) -> float | None:
    """What trials are compared by: fresh episodes at the end or, without any, training ones."""
    evaluated = result.evaluation_return
    return result.mean_return_100 if evaluated is None else evaluated


class TrialRun:
    """One run while it goes. It is in a session of its own: Ctrl-C reaches it through the sweep."""

    def __init__(self, files: TrialFiles, options: Mapping[str, Any], trust_code: bool) -> None:
        self.files, self._options = files, options
        config, log = files.beside("json"), files.beside("log")
        write_atomically(config, dumps(dict(options)) + "\n")
        words = ["train", "--config", str(config), "--run-dir", str(files.run_dir), "--quiet"]
        words += ["--trust-code"] if trust_code else []
        self._began = time.monotonic()
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "veldt", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        created = psutil.Process(self._process.pid).create_time()
        write_atomically(files.beside("pid"), dumps({"pid": self._process.pid, "created": created}))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def progress(self) -> tuple[float, float] | None:
        """The fraction of the budget that is used, and the mean return of the last 100 training
        episodes; None before one has ended."""
        try:
            text = (self.files.run_dir / STATUS_FILE).read_text(encoding="utf-8")
            status = json.loads(text)
            score, steps = status.get("mean_return_100"), status.get("env_steps", 0)
        except (OSError, ValueError, AttributeError):
            return None
        if score is None or not status.get("episodes"):
            return None
        spent = [0.0]
        if self._options.get("max_seconds") is not None:
            spent.append((time.monotonic() - self._began) / self._options["max_seconds"])
        if self._options.get("total_env_steps") is not None:
            spent.append(steps / self._options["total_env_steps"])
        return max(spent), float(score)

    def ask_to_end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Ask the run to end, and make it."""
        _end(self._process.pid, lambda: self.has_ended)

    def last_words(self) -> str:
        """The last line the run has written: why it failed."""
        text = self.files.beside("log").read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def _end(pid: int, has_ended: Callable[[], bool]) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not has_ended() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # its nodes, should any have outlived it
    while not has_ended():
        time.sleep(_LOOK_SECONDS)
