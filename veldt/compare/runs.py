# SPDX-License-Identifier: Apache-2.0
"""Runs what is missing of a comparison, each run a `veldt train` process of its own.

A run is finished when its result.json says that it reached a budget or the target. Anything else
found under its name is moved aside, and the run begins again.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veldt.architectures import label
from veldt.compare.settings import Comparison
from veldt.run.directory import RESULT_FILE
from veldt.telemetry.result import RunResult

_FINISHED = ("target", "env_steps", "seconds")
LogFn = Callable[[str], None]


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
        """The command line without `veldt`."""
        given = {**self.options, "seed": self.seed, "run_dir": self.run_dir}
        flags: list[str] = []
        for name, value in given.items():
            flags += [f"--{name.replace('_', '-')}", str(value)]
        return ["train", self.architecture, *flags, "--quiet"]

    @property
    def command(self) -> str:
        return shlex.join(["veldt", *self.arguments])


def tasks(comparison: Comparison, architectures: Iterable[str], out: Path) -> list[RunTask]:
    """All runs, seed by seed, so that an interrupted comparison has every architecture once."""
    names, options = list(architectures), comparison.run_options
    return [
        RunTask(name, seed, out / "runs" / f"{label(name)}-seed{seed}", options)
        for seed in range(comparison.seeds)
        for name in names
    ]


def finished(task: RunTask) -> RunResult | None:
    """The run's result, if it reached a budget or the target."""
    try:
        result = RunResult.load(task.run_dir / RESULT_FILE)
    except (OSError, ValueError, TypeError):
        return None
    is_same = (result.architecture, result.seed) == (task.architecture, task.seed)
    return result if is_same and result.stopped_by in _FINISHED else None


def run_all(todo: list[RunTask], log: LogFn) -> dict[str, str]:
    """Run what is not finished; the last line of output of each failed run, by name."""
    failures = {}
    for number, task in enumerate(todo, start=1):
        place = f"[{number}/{len(todo)}] {task.name}"
        with task_lock(task, f"{place}: still running from before, waiting", log) as lock:
            if finished(task) is not None:
                log(f"{place}: finished before")
                continue
            move_aside(task.run_dir)
            last_line = _run(task, lock)
        result = finished(task)
        if result is None:
            failures[task.name] = last_line
            log(f"{place}: failed: {last_line}")
        else:
            score = result.evaluation_return
            shown = "no episode ended" if score is None else f"score {score:.1f}"
            log(f"{place}: {shown}, {result.env_steps:,} steps in {result.wall_seconds:.0f} s")
    return failures


@contextmanager
def task_lock(task: RunTask, notice: str, log: LogFn) -> Iterator[int]:
    """Hold the lock of a task and yield its descriptor, which the run's process inherits.

    A second comparison thus waits, after logging `notice`, for a run that outlived the first."""
    task.run_dir.parent.mkdir(parents=True, exist_ok=True)
    path = task.run_dir.with_name(f"{task.run_dir.name}.lock")
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(notice)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def move_aside(run_dir: Path) -> None:
    """Rename an unfinished run's directory; nothing is deleted."""
    if not run_dir.exists():
        return
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.unfinished-{number}")).exists():
        number += 1
    run_dir.rename(target)


def _run(task: RunTask, lock: int) -> str:
    """Run one process to its end; its last line of output."""
    log = task.run_dir.with_name(f"{task.run_dir.name}.log")
    with open(log, "wb") as output:
        # A session of its own: Ctrl-C must reach it once, through this process.
        process = subprocess.Popen(
            [sys.executable, "-m", "veldt", *task.arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
        )
        try:
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
