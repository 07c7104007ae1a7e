# SPDX-License-Identifier: Apache-2.0
"""The live page beside a run: `veldt watch` in a process of its own, which ends with the run.

This process listens and the child inherits the socket, so the address is known at once and a port
that is taken is refused before anything starts.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veldt.callbacks import Sidecar
from veldt.errors import ConfigurationError

_LOOPBACK = "127.0.0.1"
_GRACE_SECONDS = 5.0
_NICENESS = 19


def check_installed() -> None:
    if importlib.util.find_spec("nicegui") is None:
        raise ConfigurationError('the live page needs an extra: pip install "veldt[dashboard]"')


def listen(port: int) -> socket.socket:
    """A listening socket that only this machine can reach; port 0 takes any that is free."""
    try:
        return socket.create_server((_LOOPBACK, port))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"cannot serve the live page on port {port} ({error}); choose another port"
        ) from error


def address(listener: socket.socket) -> str:
    return f"http://{_LOOPBACK}:{listener.getsockname()[1]}/"


class LivePage(Sidecar):
    """Serves the live page of a run; does nothing if it is not wanted."""

    def __init__(self, wanted: int | bool) -> None:
        """`wanted` is a port, True for any that is free, or False."""
        port = 0 if wanted is True else wanted
        self._listener = None if wanted is False else listen(port)

    @contextmanager
    def running(self, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
        """Serve the page until the block is left. The child's standard input is its lifeline: it
        closes with this process, however that ends."""
        if self._listener is None:
            yield
            return
        with self._listener as listener:
            print(f"live page: {address(listener)}", file=sys.stderr, flush=True)
            descriptor = listener.fileno()
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "veldt", "watch", os.path.abspath(run_dir)),
                    *("--beside-run", str(descriptor)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
                process_group=0,  # Ctrl-C is for the run; the page shows its end
            )
            # A page may be late; a run must not be. Same session, as the kernel would otherwise
            # share cores between the two as groups, whatever their priorities.
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        try:
            yield
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Written to before it is closed: processes forked by environments may still hold the pipe."""
    try:
        child.communicate(b"end", _GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
