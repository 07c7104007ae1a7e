# SPDX-License-Identifier: Apache-2.0
"""The runs of a sweep: `veldt train` processes, observed through their files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from veldt.files import write_atomically
from veldt.telemetry.record import RESULT_FILE, STATUS_FILE
from veldt.telemetry.result import RunResult, dumps

_FINISHED = ("target", "env_steps", "seconds")
_GRACE_SECONDS = 20.0  # a run writes a checkpoint before it ends
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class TrialFiles:
    """The run directory of a trial and the files beside it."""

    run_dir: Path

    @staticmethod
    def of(folder: Path, number: int) -> TrialFiles:
        return TrialFiles(folder / "trials" / f"{number:03}")

    def beside(self, suffix: str) -> Path:
        return self.run_dir.with_name(f"{self.run_dir.name}.{suffix}")

    def result(self) -> RunResult | None:
        """The run's result; None before its end."""
        try:
            return RunResult.load(self.run_dir / RESULT_FILE)
        except (OSError, ValueError, TypeError):
            return None

    def finished(self) -> RunResult | None:
        """The result of a run that used its budget or reached the target."""
        result = self.result()
        return result if result is not None and result.stopped_by in _FINISHED else None

    def end_leftover(self) -> None:
        """End the run of a sweep that was killed, if it still exists."""
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            stored = json.loads(self.beside("pid").read_text(encoding="utf-8"))
            process = psutil.Process(stored["pid"])
            if process.create_time() == stored["created"]:
                end_run(process)


def score_of(result: RunResult) -> float | None:
    """Mean return of the final evaluation or, without one, of training episodes."""
    evaluated = result.evaluation_return
    return result.mean_return_100 if evaluated is None else evaluated


class TrialRun:
    """The process of one trial, in a session of its own: Ctrl-C reaches it through the sweep."""

    def __init__(self, files: TrialFiles, options: Mapping[str, Any], trust_code: bool) -> None:
        self._files, self._options = files, options
        config, log = files.beside("json"), files.beside("log")
        write_atomically(config, dumps(dict(options)) + "\n")
        words = ["train", "--config", str(config), "--run-dir", str(files.run_dir), "--quiet"]
        words += ["--trust-code"] if trust_code else []
        self._began = time.monotonic()
        with open(log, "wb") as output:
            self._process = psutil.Popen(
                [sys.executable, "-m", "veldt", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        identity = {"pid": self._process.pid, "created": self._process.create_time()}
        write_atomically(files.beside("pid"), dumps(identity))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def progress(self) -> tuple[float, float] | None:
        """The used fraction of the budget, and the mean return of the last 100 training episodes.

        None before the first episode has ended."""
        try:
            text = (self._files.run_dir / STATUS_FILE).read_text(encoding="utf-8")
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

    def end(self) -> None:
        if not self.has_ended:
            end_run(self._process)
            self._process.wait()

    def last_line(self) -> str:
        """The last line of the run's output, which says why it failed."""
        text = self._files.beside("log").read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def end_run(process: psutil.Process) -> None:
    """Terminate a run; kill its whole session where it does not end in time."""
    with suppress(psutil.NoSuchProcess):
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    while _is_running(process) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also nodes that outlived it
    while _is_running(process):
        time.sleep(_POLL_SECONDS)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
