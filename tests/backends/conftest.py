# SPDX-License-Identifier: Apache-2.0
"""Backends that are stopped whatever a test does, and one Ray cluster for the whole session."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

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
def local_cluster():
    """A local cluster whose workers can import the roles of these tests; not joined yet."""
    from veldt.backends.ray.cluster import Cluster

    path = os.pathsep.join(filter(None, (_HERE, os.environ.get("PYTHONPATH"))))
    cluster = Cluster()
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        yield cluster
    cluster.leave()


@pytest.fixture
def ray_cluster(local_cluster):
    """This process is connected to it, also after other tests have ended the connection."""
    import ray

    if not ray.is_initialized():
        local_cluster.leave()
        local_cluster.join()


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
