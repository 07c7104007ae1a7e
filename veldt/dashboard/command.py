# SPDX-License-Identifier: Apache-2.0
"""`veldt watch RUN_DIR ...`: the live page of runs that go on, have ended, or were lost."""

from __future__ import annotations

import contextlib
import socket

from veldt.dashboard.child import address, check_installed, listen
from veldt.dashboard.reading import RunReader, runs_in


def watch(run_dir: list[str], port: int = 0, beside_run: int | None = None) -> int:
    """Serve the page until Ctrl-C. `beside_run` is the listening socket that a run handed down; the
    page then ends with the run."""
    check_installed()
    readers = {name: RunReader(path) for name, path in runs_in(run_dir).items()}
    listener = listen(port) if beside_run is None else socket.socket(fileno=beside_run)
    from veldt.dashboard.server import serve

    if beside_run is None:
        print(
            f"live page of {', '.join(readers)}: {address(listener)} (Ctrl-C ends it)", flush=True
        )
    with contextlib.suppress(KeyboardInterrupt):
        serve(readers, listener, beside_run is not None)
    return 0
