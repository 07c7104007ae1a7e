# SPDX-License-Identifier: Apache-2.0
"""`veldt watch RUN_DIR`: the live page of a run that goes on, has ended, or was lost."""

from __future__ import annotations

import argparse
import contextlib
import socket

from veldt.command_line.options import Parser, whole_number
from veldt.dashboard.child import address, check_installed, listen
from veldt.dashboard.reading import RunReader


def parser() -> Parser:
    """The options of the command; `--beside-run` is for runs that start it themselves."""
    made = Parser("veldt watch", "Watch: a live page of a run that goes on or has ended")
    made.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    made.add_argument(
        "--port", type=whole_number, default=0, help="port on this machine; 0: any that is free [0]"
    )
    made.add_argument("--beside-run", type=whole_number, help=argparse.SUPPRESS)
    return made


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
