# SPDX-License-Identifier: Apache-2.0
"""Runs what is not finished yet, one run after another, each an ordinary `veldt train` process.

A run is finished when its result.json says that it reached a budget or the target; whatever else is
found under its name is moved aside and the run begins again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veldt.architectures import label
from veldt.compare.machine import tree_bytes
from veldt.compare.settings import Comparison
from veldt.files import write_atomically
from veldt.run.directory import RESULT_FILE
from veldt.telemetry.result import RunResult

MEMORY_FILE = "memory.json"
_FINISHED = ("target", "env_steps", "seconds")
_LOOK_SECONDS = 0.1
_MEMORY_SECONDS = 1.0


@dataclass(frozen=True)
class RunTask:
    """One architecture with one seed."""

    architecture: str
    seed: int
    run_dir: Path
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{label(self.architecture)} seed {self.seed}"

    @property
    def arguments(self) -> list[str]:
        """What follows `veldt` on the command line."""
        flags = [
            text
            for name, value in {**self.options, "seed": self.seed, "run_dir": self.run_dir}.items()
            for text in (f"--{name.replace('_', '-')}", str(value))
        ]
        return ["train", self.architecture, *flags, "--quiet"]

    @property
    def command(self) -> str:
        return shlex.join(["veldt", *self.arguments])


def tasks(comparison: Comparison, architectures: Iterable[str], out: Path) -> list[RunTask]:
    """All runs, seed by seed: an interrupted comparison has every architecture at least once."""
    names = list(architectures)
    return [
        RunTask(
            name, seed, out / "runs" / f"{label(name)}-seed{seed}", dict(comparison.run_options)
        )
        for seed in range(comparison.seeds)
        for name in names
    ]


def finished(task: RunTask) -> RunResult | None:
    """The run's result, if it ended as it should."""
    try:
        result = RunResult.load(task.run_dir / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None
    is_it = (result.architecture, result.seed) == (task.architecture, task.seed)
    return result if is_it and result.stopped_by in _FINISHED else None


def run_all(todo: list[RunTask], say: Callable[[str], None]) -> dict[str, str]:
    """Run what is not finished; the last line of each run that failed, by name."""
    failures = {}
    for number, task in enumerate(todo, start=1):
        place = f"[{number}/{len(todo)}] {task.name}"
        with claimed(task, f"{place}: still running from before, waiting", say) as lock:
            if finished(task) is not None:
                say(f"{place}: finished before")
                continue
            move_aside(task.run_dir)
            error = _run(task, lock)
        result = finished(task)
        if result is None:
            failures[task.name] = error
            say(f"{place}: failed: {error}")
        else:
            score = result.evaluation_return
            shown = "no episode ended" if score is None else f"score {score:.1f}"
            say(f"{place}: {shown}, {result.env_steps:,} steps in {result.wall_seconds:.0f} s")
    return failures


@contextmanager
def claimed(task: RunTask, notice: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the task; yields the lock, which the run's process inherits. A run thus outlives a
    comparison that was killed, and a second one waits until it has ended by its own budget."""
    with locked(task.run_dir.with_name(f"{task.run_dir.name}.lock"), notice, say) as lock:
        yield lock


@contextmanager
def locked(path: Path, notice: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold a lock file, after `notice` if somebody else holds it; yields its descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(notice)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def move_aside(run_dir: Path) -> Path | None:
    """Give the name free; nothing is deleted."""
    if not run_dir.exists():
        return None
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.unfinished-{number}")).exists():
        number += 1
    return run_dir.rename(target)


def _run(task: RunTask, lock: int) -> str:
    """One process to its end; the last line it wrote. It leaves its peak memory in its folder."""
    log = task.run_dir.with_name(f"{task.run_dir.name}.log")
    command = [sys.executable, "-m", "veldt", *task.arguments]
    with open(log, "wb") as output:
        # A session of its own: Ctrl-C reaches it once, through us, and it can save what it has.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
        )
        try:
            peak = _watch(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if task.run_dir.is_dir():
        memory = json.dumps({"peak_memory_bytes": peak})
        write_atomically(task.run_dir / MEMORY_FILE, memory + "\n")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _watch(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the end; the largest memory of the process and all its children seen meanwhile."""
    peak, next_look = None, 0.0
    while process.poll() is None:
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _MEMORY_SECONDS
            seen = tree_bytes(process.pid)
            peak = seen if peak is None else max(peak, seen or 0)
        time.sleep(_LOOK_SECONDS)
    return peak
