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
    """Properties of a backend that other packages depend on, known without importing it."""

    is_deterministic: bool = False
    """The same seed gives the same bits: neither the clock nor the machine may decide anything."""
    runs_in_one_thread: bool = False
    """All nodes and the run itself take turns in one thread."""
    stays_on_this_machine: bool = True
    """Every node runs on this machine, so its process ids and device numbers are valid here."""
    starts_processes: bool = False
    """Nodes run in new Python processes, which import the main module of the program again."""


BACKENDS = {
    "serial": BackendSpec(is_deterministic=True, runs_in_one_thread=True),
    "process": BackendSpec(starts_processes=True),
    "ray": BackendSpec(stays_on_this_machine=False),
}
"""By the value of the option `backend`."""


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
