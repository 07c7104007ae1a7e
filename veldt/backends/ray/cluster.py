# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster that this process is part of: joining it, and what there is to know about it."""

from __future__ import annotations

import ipaddress
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from veldt.backends.elastic import Elastic
from veldt.backends.ray import starting
from veldt.backends.ray.private_cluster import ask_for_token
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
    """A cluster this process is connected to; `connection` only if it began that itself."""

    connection: starting.Connection | None

    def leave(self) -> None:
        """Disconnect; a private cluster ends with that. One that was there before stays."""
        if self.connection is not None:
            self.connection.end()
        self.connection = None


def join() -> Cluster:
    """Use the connection there is, else RAY_ADDRESS, else a private cluster on this machine."""
    check_version()
    starting.begin()
    connection = starting.taken()
    if connection is not None:
        try:
            connection.wait()
        except BaseException:
            connection.end()
            raise
    return Cluster(connection)


def leave_signals_alone() -> None:
    """Ray would print a stack at SIGTERM and end this process before anything is saved."""
    from ray._private import ray_constants

    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True


def take_signals_back() -> None:
    """Whoever handled them before does so again, where Ray has done something about them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
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


def check_version() -> None:
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Ray {ray.__version__} has known remote-execution holes; the ray backend needs"
            f' {_OLDEST[0]}.{_OLDEST[1]} or newer: pip install --upgrade "veldt[ray]"'
        )


def require_token() -> None:
    """Clusters that this process starts from now on listen on loopback and want a token."""
    ask_for_token()
    _reread_environment()


def _reread_environment() -> None:
    """Ray reads these settings when it is imported, which may have been long ago."""
    from ray._private import ray_constants

    settings = getattr(ray._raylet, "Config", None)
    if settings is not None:
        settings.initialize("")
    ray_constants.ENABLE_RAY_CLUSTER = False
    # Under `uv run` Ray would have an environment made for the workers; here they share this one.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
