# SPDX-License-Identifier: Apache-2.0
"""`veldt watch RUN_DIR ...`: the live page of runs that go on, have ended, or were lost."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import NoReturn

from veldt.dashboard.child import address, check_installed, listen
from veldt.dashboard.reading import RunReader, runs_in
from veldt.remote.places import is_remote

_REFRESH_SECONDS = 5.0


def watch(run_dir: list[str], port: int = 0, beside_run: int | None = None) -> int:
    """Serve the page until Ctrl-C. `beside_run` is the listening socket that a run handed down; the
    page then ends with the run."""
    check_installed()
    places = [str(_followed(place)) if is_remote(place) else place for place in run_dir]
    readers = {name: RunReader(path) for name, path in runs_in(places).items()}
    listener = listen(port) if beside_run is None else socket.socket(fileno=beside_run)
    from veldt.dashboard.server import serve

    if beside_run is None:
        print(
            f"live page of {', '.join(readers)}: {address(listener)} (Ctrl-C ends it)", flush=True
        )
    with contextlib.suppress(KeyboardInterrupt):
        serve(readers, listener, beside_run is not None)
    return 0


def _followed(url: str) -> Path:
    """A copy of a run that lives in a store, which is brought up to date as long as this process
    lives."""
    from veldt.backends.background import Background
    from veldt.remote.download import refresh_files
    from veldt.remote.location import local_run
    from veldt.remote.store import RemoteStore, StoreError

    local, store = local_run(url), RemoteStore(url)

    def follow() -> NoReturn:
        while True:
            time.sleep(_REFRESH_SECONDS)
            with contextlib.suppress(StoreError, OSError):  # the page shows how old its news are
                refresh_files(store, local)

    Background(follow)
    return local
