# SPDX-License-Identifier: Apache-2.0
"""`veldt watch RUN_DIR`: the live page of a run that goes on, has ended, or was lost."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import NoReturn

from veldt.dashboard.child import address, check_installed, listen
from veldt.dashboard.reading import RunReader
from veldt.remote.places import is_remote

_REFRESH_SECONDS = 5.0


def watch(run_dir: str, port: int = 0, beside_run: int | None = None) -> int:
    """Serve the page until Ctrl-C. `beside_run` is the listening socket that a run handed down; the
    page then ends with the run."""
    check_installed()
    if is_remote(run_dir):
        run_dir = str(_followed(run_dir))
    reader = RunReader(run_dir)
    listener = listen(port) if beside_run is None else socket.socket(fileno=beside_run)
    from veldt.dashboard.server import serve

    if beside_run is None:
        print(f"live page of {run_dir}: {address(listener)} (Ctrl-C ends it)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        serve(reader, listener, beside_run is not None)
    return 0


def _followed(url: str) -> Path:
    """A copy of a run that lives in a store, which is brought up to date as long as this process
    lives."""
    from veldt.backends.background import Background
    from veldt.remote.copying import refresh_files
    from veldt.remote.store import RemoteStore, StoreError
    from veldt.run.home import local_run

    local, store = local_run(url), RemoteStore(url)

    def follow() -> NoReturn:
        while True:
            time.sleep(_REFRESH_SECONDS)
            with contextlib.suppress(StoreError, OSError):  # the page shows how old its news are
                refresh_files(store, local)

    Background(follow)
    return local
