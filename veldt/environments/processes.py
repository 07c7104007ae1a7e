# SPDX-License-Identifier: Apache-2.0
"""Processes for environments: pipes, starting, and ending them together with their owner.

Backends start the processes of a run. Environments in processes of their own are the exception,
because any process may step them: an actor, the plan that measures them, or `veldt evaluate`.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

__all__ = ["Connection", "pipe", "process_context", "start"]

_MARK = "veldt-"


def process_context() -> Any:
    """Fork server: the process that steps environments may already run threads."""
    return multiprocessing.get_context("forkserver")


def pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    ends: tuple[Connection, Connection] = process_context().Pipe(duplex)
    return ends


def start(run: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a process that runs `run`."""
    process: BaseProcess = process_context().Process(target=run, args=arguments)
    process.start()
    claim(Path(get_temp_dir()))
    return process


def lead_group() -> None:
    """Put this process and its children into a group that can be killed together."""
    os.setpgid(0, 0)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM, which the main process handles for the whole run.

    Not SIG_IGN for SIGTERM, because programs that an environment starts would inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _no_action)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _no_action(*_: object) -> None: ...


def die_with(lifeline: int) -> bool:
    """Let the kernel kill this process group when the other end of the pipe closes.

    Works also when the owner was killed and this group is in an endless loop. False where the
    system does not support it."""
    if not hasattr(fcntl, "F_SETSIG"):
        return False
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":
            os._exit(1)  # the other process died before the signal was armed
    return True


def kill_group(process_id: int) -> None:
    """Kill the remaining processes of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, signal.SIGKILL)


def claim(folder: Path) -> None:
    """Mark a temporary folder of multiprocessing as owned by this process."""
    with contextlib.suppress(OSError):
        (folder / f"{_MARK}{os.getpid()}").touch()


def remove_leftovers() -> None:
    """Remove the marked temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("pymp-*"):
        with contextlib.suppress(OSError):
            owners = [path.name.removeprefix(_MARK) for path in folder.glob(f"{_MARK}*")]
            is_ours = bool(owners) and folder.stat().st_uid == os.getuid()
            if is_ours and not any(Path("/proc", owner).exists() for owner in owners):
                shutil.rmtree(folder, ignore_errors=True)
