# SPDX-License-Identifier: Apache-2.0
"""Joins a Ray cluster, or starts one on this machine, and notices when its head is gone."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import ray

from veldt.backends.background import Background
from veldt.backends.base import NodeFailure
from veldt.backends.ray import HAS_LOCAL_SETTINGS, named_address
from veldt.errors import ConfigurationError
from veldt.resources import limit_library_threads

_OLDEST = (2, 56)
_TOKEN_MODES = ("token", "k8s")
_END_SECONDS = 20.0  # it may still start
_JOIN_SECONDS = 10.0  # for a connection that is interrupted
_LOST_SECONDS = 5.0
_CHECK_SECONDS = 2.0
_CONNECT_SECONDS = 2.0
_MAX_REFUSALS = 4


class Cluster:
    """The connection of this process to a cluster."""

    def __init__(self) -> None:
        self._local: LocalCluster | None = None
        self._connecting: Background[object] | None = None

    def join(self) -> None:
        """Use the connection there is, else RAY_ADDRESS, else a new cluster on this machine.

        A signal handler may raise in here; `leave` then ends what has begun."""
        check_version()
        if ray.is_initialized():
            return
        address = named_address()
        if address is None:
            self._local = LocalCluster()
            address = self._local.address()
        init = partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
        # Outside the main thread Ray cannot install its handler of SIGTERM.
        self._connecting = Background(partial(init, address))
        try:
            self._connecting.done(None)
            self._connecting.result()
        except (ConnectionError, RuntimeError) as error:
            cause = f"cannot join the cluster at {address}: {error}"
            advice = "check the address, RAY_AUTH_MODE and the token"
            raise NodeFailure("ray", f"{cause}; {advice}") from error
        finally:
            _restore_signal_handlers()

    def leave(self, is_lost: bool = False) -> None:
        """Disconnect, and end a local cluster. `is_lost`: the head does not answer."""
        if self._local is not None and is_lost:
            self._local.end(at_once=True)
        if self._connecting is not None:
            self._connecting.done(_JOIN_SECONDS)
            Background(ray.shutdown).done(_LOST_SECONDS if is_lost else None)
        if self._local is not None:
            self._local.end()
        self._local = self._connecting = None


class LocalCluster:
    """A program that starts Ray on this machine, and ends it when this process ends."""

    def __init__(self) -> None:
        if not HAS_LOCAL_SETTINGS:
            raise ConfigurationError(
                "Ray was imported before this run could require a token of its cluster; call"
                " ray.init first, or train before `import ray`"
            )
        limit_library_threads()
        self._program = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("local_cluster.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a signal to the run's group must not end Ray before the run is saved
        )

    def address(self) -> str:
        """Wait until the cluster has started; the address of its head."""
        assert self._program.stdout is not None
        kind, _, text = self._program.stdout.readline().decode().strip().partition(" ")
        if kind != "address":
            cause = f"a local cluster did not start: {text or 'its program was killed'}"
            if "AF_UNIX" in cause:
                cause = f"{cause}; set TMPDIR to a shorter path"
            raise NodeFailure("ray", cause)
        return text

    def end(self, at_once: bool = False) -> None:
        """End the program; the kernel then ends the processes of Ray that are left."""
        assert self._program.stdin is not None
        if at_once:
            self._program.kill()
        with suppress(BrokenPipeError):
            self._program.stdin.close()
        try:
            self._program.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()


def _restore_signal_handlers() -> None:
    """Install Python's handlers again, where Ray's library has replaced them in C++."""
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        if handler is not None:
            with suppress(ValueError):  # not the main thread: signals are the host program's
                signal.signal(number, handler)


def check_version() -> None:
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Ray {ray.__version__} has known remote-execution holes; the ray backend needs"
            f' {_OLDEST[0]}.{_OLDEST[1]} or newer: pip install "ray>={_OLDEST[0]}.{_OLDEST[1]}"'
        )


def warning_about_token() -> str | None:
    """A warning where the cluster can be used by anyone who reaches its ports."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() in _TOKEN_MODES:
        return None
    return (
        "this Ray cluster requires no token: anyone who reaches its ports can run code in it; start"
        " it with RAY_AUTH_MODE=token"
    )


def is_one_machine() -> bool:
    """Whether no other machine can ever join the cluster: its one address is loopback."""
    address, *others = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return not others and ipaddress.ip_address(address).is_loopback


class Watch:
    """Checks that the head of the cluster and Ray's process on this machine still answer.

    Without the head, Ray aborts this process after a minute; without the other, calls never return.
    Neither comes with a message."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._watched = {
            "the head of the cluster": context.gcs_address,
            "Ray's node on this machine": f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}",
        }
        self._check: Background[str | None] | None = None  # a lost machine does not even refuse
        self._next, self._refusals = 0.0, 0
        self.is_lost = False

    def check(self, checkpoint: Path | None) -> None:
        """Raise NodeFailure when one did not answer several times in a row. The message names the
        newest checkpoint, because no other can follow."""
        if self._check is None:
            if time.monotonic() >= self._next:
                self._check = Background(self._silent)
            return
        if not self._check.done():
            return
        silent = self._check.result()
        self._refusals = 0 if silent is None else self._refusals + 1
        self._check, self._next = None, time.monotonic() + _CHECK_SECONDS
        if self._refusals >= _MAX_REFUSALS:
            self.is_lost = True
            raise NodeFailure(
                "ray",
                f"{silent} does not answer any more; the newest checkpoint is"
                f" {checkpoint or 'none, as there was no time for one'}",
            )

    def _silent(self) -> str | None:
        for name, address in self._watched.items():
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            except OSError:
                return f"{name} at {address}"
        return None
