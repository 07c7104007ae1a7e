# SPDX-License-Identifier: Apache-2.0
"""Where nodes run: serial (one thread), process (shared memory), ray (a cluster)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from veldt.backends.base import Backend, BackendOptions
    from veldt.topology import Topology


@dataclass(frozen=True)
class BackendSpec:
    """What the rest of a run needs to know about a backend, without importing it."""

    name: str
    is_deterministic: bool
    """The same seed gives the same bits, so the clock and the machine decide nothing."""
    in_one_process: bool
    """All nodes run interleaved in one thread, so none may wait for another."""
    on_this_machine: bool
    """Every node runs on this machine: cores, devices and process ids mean what they mean here."""
    starts_processes_here: bool
    """Starts Python processes itself, which import the main module of the program."""


BACKENDS = {
    "serial": BackendSpec(
        "serial",
        is_deterministic=True,
        in_one_process=True,
        on_this_machine=True,
        starts_processes_here=False,
    ),
    "process": BackendSpec(
        "process",
        is_deterministic=False,
        in_one_process=False,
        on_this_machine=True,
        starts_processes_here=True,
    ),
    "ray": BackendSpec(
        "ray",
        is_deterministic=False,
        in_one_process=False,
        on_this_machine=False,
        starts_processes_here=False,
    ),
}


def prestart(name: object, modules: Sequence[str]) -> None:
    """Start the fork server where this backend uses it, to import `modules`. Returns at once."""
    if name == "process":
        from veldt.backends.process.forkserver import warm_up

        warm_up(*modules)


def make_backend(
    name: str,
    topology: Topology,
    seed: int,
    options: BackendOptions | None = None,
) -> Backend:
    """The backend of this name; each is imported only when it is used."""
    from veldt.backends.base import DEFAULTS

    options = options or DEFAULTS
    if name == "serial":
        from veldt.backends.serial import SerialBackend

        return SerialBackend(topology, seed, options)
    if name == "process":
        from veldt.backends.process.backend import ProcessBackend

        return ProcessBackend(topology, seed, options)
    from veldt.backends.ray.backend import RayBackend

    return RayBackend(topology, seed, options)
