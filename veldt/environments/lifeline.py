# SPDX-License-Identifier: Apache-2.0
"""Ties a process, and all that it starts, to the one that holds the other end of a pipe.

However that one ends, the kernel then ends these: also a simulator that spins and reads nothing,
and programs that an environment has started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal


def lead_group() -> None:
    """Let this process and what it starts be ended together."""
    os.setpgid(0, 0)


def leave_signals_to_the_run() -> None:
    """Ctrl-C and a SIGTERM to every process of a job are for the one process that can end the run
    in order. Not SIG_IGN for SIGTERM: programs that an environment starts would inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _no_action)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _no_action(*_: object) -> None: ...


def die_with(lifeline: int) -> bool:
    """Ask the kernel to kill this process group when the other end of `lifeline` closes. False
    where it cannot be asked."""
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
    """Kill what is left of a group. A number that still names one is not given to another."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, signal.SIGKILL)
