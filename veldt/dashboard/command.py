# SPDX-License-Identifier: Apache-2.0
"""`veldt watch RUN_DIR`: the live page of a run that goes on, has ended, or was lost."""

from __future__ import annotations

import contextlib
import socket

from veldt.dashboard.child import address, check_installed, listen
from veldt.dashboard.reading import RunReader


def watch(run_dir: str, port: int = 0, beside_run: int | None = None) -> int:
    """Serve the page until Ctrl-C. `beside_run` is the listening socket that a run handed down; the
    page then ends with the run."""
    check_installed()
    reader = RunReader(run_dir)
    listener = listen(port) if beside_run is None else socket.socket(fileno=beside_run)
    from veldt.dashboard.server import serve

    if beside_run is None:
        print(f"live page of {run_dir}: {address(listener)} (Ctrl-C ends it)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(reader, listener, beside_run is not None)
    return 0
