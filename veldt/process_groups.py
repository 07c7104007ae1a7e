# SPDX-License-Identifier: Apache-2.0
"""Process groups that end with the process that owns them, and its temporary folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from multiprocessing.util import get_temp_dir
from pathlib import Path

_MARK = "veldt-"


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


def claim_temp_dir() -> None:
    """Mark multiprocessing's temporary folder as owned by this process."""
    with contextlib.suppress(OSError):
        Path(get_temp_dir(), f"{_MARK}{os.getpid()}").touch()


def remove_leftovers() -> None:
    """Remove the marked temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("pymp-*"):
        with contextlib.suppress(OSError):
            owners = [path.name.removeprefix(_MARK) for path in folder.glob(f"{_MARK}*")]
            is_ours = bool(owners) and folder.stat().st_uid == os.getuid()
            if is_ours and not any(Path("/proc", owner).exists() for owner in owners):
                shutil.rmtree(folder, ignore_errors=True)
