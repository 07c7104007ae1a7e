# SPDX-License-Identifier: Apache-2.0
"""Process groups that end with the process that owns them, and its temporary folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from functools import cache
from multiprocessing.util import get_temp_dir
from pathlib import Path

from veldt.files import lock

_LOCK = "veldt.lock"


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


@cache
def temporary_folder() -> Path:
    """multiprocessing's temporary folder, locked by this process as long as it lives.

    Folders of processes that were killed are removed. A lock tells them from those of live ones
    also where these are in another container, which a process id does not."""
    _remove_unlocked()
    folder = Path(get_temp_dir())
    with contextlib.suppress(OSError):
        lock(folder / f"{_LOCK}.new")
        (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # is locked from its first moment
    return folder


def _remove_unlocked() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"pymp-*/{_LOCK}"):
        with contextlib.suppress(OSError):
            held = lock(path) if path.stat().st_uid == os.getuid() else None
            if held is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
                os.close(held)
