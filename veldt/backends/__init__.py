# SPDX-License-Identifier: Apache-2.0
"""Where nodes run: serial (one thread), process (shared memory), ray (a cluster)."""

from __future__ import annotations

from veldt.backends.base import Backend
from veldt.backends.elastic import Elastic
from veldt.topology import Topology


def make_backend(
    name: str,
    topology: Topology,
    seed: int,
    verify: bool = False,
    hang_seconds: float = 60.0,
    timeline_seconds: float = 0.0,
    total_env_steps: int | None = None,
    checkpoint_env_steps: int | None = None,
    elastic: Elastic | None = None,
) -> Backend:
    """The backend of this name; each is imported only when it is used. With `timeline_seconds`,
    nodes record when they did what, about so many seconds back. On serial no step begins beyond
    `total_env_steps`, nor beyond a multiple of `checkpoint_env_steps` before who drives it has
    looked; elsewhere who drives the backend pauses it. `elastic` nodes may come and go on ray."""
    if name == "serial":
        from veldt.backends.serial import SerialBackend

        points = (total_env_steps, checkpoint_env_steps)
        return SerialBackend(topology, seed, verify, timeline_seconds, *points)
    if name == "process":
        from veldt.backends.process.backend import ProcessBackend

        return ProcessBackend(topology, seed, verify, hang_seconds, timeline_seconds)
    from veldt.backends.ray.backend import RayBackend

    return RayBackend(topology, seed, verify, hang_seconds, timeline_seconds, elastic)
