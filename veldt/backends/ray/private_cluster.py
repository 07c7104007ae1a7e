# SPDX-License-Identifier: Apache-2.0
"""A cluster of a run's own on this machine: loopback only, token required, no dashboard.

Anyone who reaches a Ray port can run code in the cluster, so a local one is never left open.
Nothing here imports Ray, which takes half a second: the cluster's own program does so meanwhile.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from veldt.backends.base import NodeFailure
from veldt.resources import limit_library_threads

_PROGRAM = Path(__file__).with_name("private_program.py")
_END_SECONDS = 10.0
_IDLE_MILLISECONDS = 60_000
"""How long a worker that has nothing to do yet is kept. Ray ends it after one second, where the
CPUs are reserved, even if those who reserved them are about to ask for it."""


class PrivateCluster:
    """The program that starts Ray's processes and ends them, here or when this process is gone."""

    def __init__(self, num_processes: int, modules: Sequence[str]) -> None:
        """`num_processes` workers are started at once, and import `modules`."""
        ask_for_token()
        limit_library_threads()
        preload = ",".join(("veldt.backends.ray.preload", *modules))
        self._program = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(num_processes)],
            env={
                **os.environ,
                "RAY_preload_python_modules": preload,
                "RAY_idle_worker_killing_time_threshold_ms": str(_IDLE_MILLISECONDS),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a signal to the run's group is not Ray's: the run saves itself first
        )

    def address(self) -> str:
        """Of the head, once it is there."""
        assert self._program.stdout is not None
        kind, _, text = self._program.stdout.readline().decode().strip().partition(" ")
        if kind != "address":
            raise NodeFailure("ray", f"a private cluster did not start: {text or 'it was ended'}")
        return text

    def end(self) -> None:
        """Returns when everything has ended."""
        assert self._program.stdin is not None
        with suppress(BrokenPipeError):
            self._program.stdin.close()
        try:
            self._program.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()  # and the kernel what it has started
            self._program.wait()


def ask_for_token() -> None:
    """Clusters that this process starts from now on listen on loopback and want a token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray's own switch for "never a cluster, so bind to loopback"; elsewhere it is the default.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _has_token() -> bool:
    variables = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(os.environ.get(variable) for variable in variables):
        return True
    return (Path.home() / ".ray" / "auth_token").exists()
