# SPDX-License-Identifier: Apache-2.0
"""Joins a Ray cluster, or starts a private one: loopback only, token required, no dashboard.

Anyone who reaches a Ray port can run code in the cluster, so a local one is never left open.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veldt.backends.elastic import Elastic
from veldt.errors import ConfigurationError

_OLDEST = (2, 56)

try:
    import ray
except ImportError as error:
    raise ConfigurationError(
        'the ray backend needs Ray, which is not installed: pip install "veldt[ray]"'
    ) from error


@dataclass
class Cluster:
    """A cluster this process is connected to, and whether it was this process that began it."""

    joined_here: bool

    def leave(self) -> None:
        """Disconnect; a private cluster ends with that. One that was there before stays."""
        if self.joined_here and ray.is_initialized():
            ray.shutdown()
        self.joined_here = False


def join() -> Cluster:
    """Use the connection there is, else RAY_ADDRESS, else a private cluster on this machine."""
    _check_version()
    if ray.is_initialized():
        return Cluster(joined_here=False)
    address = os.environ.get("RAY_ADDRESS")
    with _signals_kept():
        if address and address != "local":
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            _start_private()
    return Cluster(joined_here=True)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM over, and would end this process before anything is saved; afterwards,
    whoever handled it before does so again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                with suppress(ValueError):  # not the main thread: signals are the host program's
                    signal.signal(number, handler)


def warning_about_token() -> str | None:
    """What to tell the user where whoever reaches the cluster's ports could run code in it. Who
    joins cannot change that: all of a cluster asks for a token, or nobody in it does."""
    raylet: Any = ray._raylet
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.DISABLED:
        return None
    return (
        "this Ray cluster asks for no token: whoever reaches its ports can run code in it; start it"
        " with RAY_AUTH_MODE=token"
    )


def is_one_machine() -> bool:
    """Whether no other machine can ever be part of the cluster: its one address is loopback."""
    address, *others = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return not others and ipaddress.ip_address(address).is_loopback


def require_room(num_groups: int, elastic: Elastic) -> None:
    """Refuse to wait for machines in a cluster that none can join."""
    wanted = num_groups - len(elastic.groups) + elastic.least
    there = ray.cluster_resources().get("CPU", 0.0)
    if wanted > there:
        raise ConfigurationError(
            f"{elastic.least} actors and what they need ask for {wanted} CPUs, but this machine has"
            f" {there:.0f} and no other can join it; name a cluster with RAY_ADDRESS, or give fewer"
            " --num-actors"
        )


def _check_version() -> None:
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Ray {ray.__version__} has known remote-execution holes; the ray backend needs"
            f' {_OLDEST[0]}.{_OLDEST[1]} or newer: pip install --upgrade "veldt[ray]"'
        )


def require_token() -> None:
    """Clusters that this process starts from now on listen on loopback and want a token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray's own switch for "never a cluster, so bind to loopback"; elsewhere it is the default.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _reread_environment()


def _start_private() -> None:
    require_token()
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _has_token() -> bool:
    variables = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(os.environ.get(variable) for variable in variables):
        return True
    return (Path.home() / ".ray" / "auth_token").exists()


def _reread_environment() -> None:
    """Ray reads these settings when it is imported, which may have been long ago."""
    from ray._private import ray_constants

    settings = getattr(ray._raylet, "Config", None)
    if settings is not None:
        settings.initialize("")
    ray_constants.ENABLE_RAY_CLUSTER = False
