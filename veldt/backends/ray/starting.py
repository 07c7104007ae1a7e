# SPDX-License-Identifier: Apache-2.0
"""The connection of this process to Ray, begun while it still imports torch and checks what it was
told; whoever runs nodes takes it, and what nobody takes is ended."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from veldt.backends.background import Background
from veldt.backends.ray.private_cluster import PrivateCluster
from veldt.backends.ray.private_program import is_checked
from veldt.resources import usable_cores

_JOINING_SECONDS = 10.0  # what ray.init may still take, where nobody wants it any more

_begun: Connection | None = None


class Connection:
    """Joins the cluster of RAY_ADDRESS, or a private one, on a thread."""

    def __init__(self, num_processes: int, modules: Sequence[str]) -> None:
        address = os.environ.get("RAY_ADDRESS", "local")
        self._address, self._lock = address, threading.Lock()
        self._is_unwanted = self._is_joining = False
        is_private = address in ("", "local")
        self._private = PrivateCluster(num_processes, modules) if is_private else None
        try:
            # Here, as two threads that import numpy may each see half of it.
            from veldt.backends.ray import cluster

            cluster.check_version()
        except BaseException:
            if self._private is not None:
                self._private.end()
            raise
        self._cluster = cluster
        self._connecting = Background(self._connect)

    def _connect(self) -> None:
        address = self._address if self._private is None else self._private.address()
        with self._lock:
            if self._is_unwanted:
                return
            self._is_joining = True
        if self._private is not None:
            self._cluster.require_token()
        self._cluster.leave_signals_alone()
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._cluster.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)

    def wait(self) -> None:
        """Until this process is part of the cluster; raises what prevented it."""
        try:
            self._connecting.done(None)
            self._connecting.result()
        finally:
            self._cluster.take_signals_back()

    def end(self) -> None:
        """Disconnect; a private cluster ends with that. One that was there before stays."""
        with self._lock:
            self._is_unwanted, is_joining = True, self._is_joining
        if is_joining:  # and would hang for long if its cluster went away
            self._connecting.done(_JOINING_SECONDS)
            if self._cluster.ray.is_initialized():
                self._cluster.ray.shutdown()
        if self._private is not None:
            self._private.end()


def begin_early(num_actors: object, modules: Sequence[str]) -> None:
    """Begin before it is known whether there will be a run, where Ray can be kept from handling
    signals until then. `num_actors`: as the option says it."""
    with suppress(PackageNotFoundError):
        if is_checked(version("ray")):
            begin(num_actors, modules)


def begin(num_actors: object = None, modules: Sequence[str] = ()) -> None:
    """Begin to connect, unless this process is connected already. Returns before it is."""
    global _begun
    if _begun is None and not is_connected():
        most = str(num_actors).rpartition("..")[2]
        wanted = int(most) + 1 if most.isdecimal() else usable_cores()
        _begun = Connection(min(wanted, usable_cores()), modules)


def is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def taken() -> Connection | None:
    """The connection that was begun, which is the caller's to end from now on."""
    global _begun
    connection, _begun = _begun, None
    return connection


def give_up() -> None:
    """End what was begun and nobody has taken."""
    connection = taken()
    if connection is not None:
        connection.end()
