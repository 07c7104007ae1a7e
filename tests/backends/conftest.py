# SPDX-License-Identifier: Apache-2.0
"""Backends that are stopped whatever a test does, and one Ray cluster for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import MakeBackend

import veldt.backends
from veldt.backends.base import Backend, BackendOptions
from veldt.backends.process import forkserver
from veldt.topology import Topology

_HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def fork_server() -> None:
    forkserver.warm_up()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local cluster whose workers can import the roles of these tests."""
    from veldt.backends.ray.cluster import Cluster

    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_HERE, inherited)))
    cluster = Cluster()
    cluster.join()
    yield
    cluster.leave()
    if inherited is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = inherited


@pytest.fixture
def make_backend(request: pytest.FixtureRequest) -> Iterator[MakeBackend]:
    """Builds a backend by name; checksums are on."""
    made: list[Backend] = []

    def make(name: str, topology: Topology, seed: int = 1, **options: float) -> Backend:
        request.getfixturevalue("ray_cluster" if name.startswith("ray") else "fork_server")
        checked = BackendOptions(verify=True, **options)
        if name == "ray-apart":  # as if each process were on another machine
            from veldt.backends.ray.backend import RayBackend

            made.append(RayBackend(topology, seed, checked, share_memory=False))
            return made[-1]
        made.append(veldt.backends.make_backend(name, topology, seed, checked))
        return made[-1]

    yield make
    for backend in made:
        backend.stop()
