# SPDX-License-Identifier: Apache-2.0
"""Where nodes run: serial (one thread), process (shared memory), ray (a cluster)."""

from __future__ import annotations

from veldt.backends.base import DEFAULTS, Backend, BackendOptions
from veldt.backends.elastic import Elastic
from veldt.topology import Topology


def make_backend(
    name: str,
    topology: Topology,
    seed: int,
    options: BackendOptions = DEFAULTS,
    elastic: Elastic | None = None,
) -> Backend:
    """The backend of this name; each is imported only when it is used. `elastic` nodes may come and
    go on ray."""
    if name == "serial":
        from veldt.backends.serial import SerialBackend

        return SerialBackend(topology, seed, options)
    if name == "process":
        from veldt.backends.process.backend import ProcessBackend

        return ProcessBackend(topology, seed, options)
    from veldt.backends.ray.backend import RayBackend

    return RayBackend(topology, seed, options, elastic)
