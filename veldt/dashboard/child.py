# SPDX-License-Identifier: Apache-2.0
"""The process that serves the live page: of a run, which it ends with, or `veldt watch`.

The run listens and its child inherits the socket, so the address is known at once, and a port that
is taken is refused before anything starts.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from veldt.callbacks import Sidecar
from veldt.errors import ConfigurationError, install

_LOOPBACK = "127.0.0.1"
_GRACE_SECONDS = 5.0
_NICENESS = 19


def check_installed() -> None:
    if importlib.util.find_spec("nicegui") is None:
        raise ConfigurationError(f"the live page needs an extra: {install('dashboard')}")


def _listen(port: int) -> socket.socket:
    """A listening socket that only this machine can reach; port 0 takes any free one."""
    try:
        return socket.create_server((_LOOPBACK, port))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"cannot serve the live page on port {port} ({error}); choose another port"
        ) from error


def _address(listener: socket.socket) -> str:
    return f"http://{_LOOPBACK}:{listener.getsockname()[1]}/"


class LivePage(Sidecar):
    """The page of a run; does nothing if it is not wanted."""

    def __init__(self, wanted: int | bool) -> None:
        """`wanted` is a port, True for any that is free, or False."""
        self._listener = None if wanted is False else _listen(0 if wanted is True else wanted)

    @contextmanager
    def running(self, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
        """Serve the page until the block ends.

        The child ends when its standard input closes, however this process ends."""
        if self._listener is None:
            yield
            return
        with self._listener as listener:
            print(f"live page: {_address(listener)}", file=sys.stderr, flush=True)
            descriptor = listener.fileno()
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "veldt", "watch", os.path.abspath(run_dir)),
                    *("--beside-run", str(descriptor)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
                process_group=0,  # Ctrl-C ends the run first, whose end the page shows
            )
            # A page may be late; a run must not be. Same session, because the kernel would
            # otherwise share cores between the two as groups, whatever their priorities.
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        try:
            yield
        finally:
            try:
                # Data and not only a close, because forked environments may hold the pipe open.
                child.communicate(b"end", _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()


def watch(run_dir: str, port: int = 0, beside_run: int | None = None) -> int:
    """Serve the page of a run until Ctrl-C; port 0 takes any free one.

    `beside_run` is the listening socket of the run that started this process and ends it."""
    from veldt.dashboard.reading import RunReader

    reader = RunReader(run_dir)
    listener = _listen(port) if beside_run is None else socket.socket(fileno=beside_run)
    from veldt.dashboard.server import serve

    if beside_run is None:
        print(f"live page of {run_dir}: {_address(listener)} (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        serve(reader, listener, beside_run is not None)
    return 0
