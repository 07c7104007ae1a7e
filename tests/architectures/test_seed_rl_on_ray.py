# SPDX-License-Identifier: Apache-2.0
"""SEED RL on Ray: actors on other Ray nodes than the server; between machines TCP with TLS."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import psutil
import pytest

from veldt.options import RunOptions
from veldt.resolve import make_plan

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """A cluster of two Ray nodes on this machine, one CPU each."""
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def train(num_updates: int) -> tuple[set[str], dict[str, float]]:
    """Run for some updates; the Ray nodes that took part, and all counters."""
    from veldt.backends.ray import RayBackend

    options = RunOptions(
        env="CartPole-v1", backend="ray", num_actors=2, envs_per_actor=8, total_env_steps=10**9
    )
    backend = RayBackend(make_plan("seed_rl", options, {}).topology, seed=1)
    try:
        backend.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        counted: dict[str, float] = {}
        while counted.get("updates", 0.0) < num_updates or counted["wire.connections"] < 2:
            assert time.monotonic() < deadline, "waited in vain for updates"
            backend.advance(0.1)
            counted = {}
            for snapshot in backend.snapshots():
                for name, value in snapshot.counters.items():
                    counted[name] = counted.get(name, 0.0) + value
        return _ray_nodes(backend.process_ids().values()), counted
    finally:
        backend.stop()


def _ray_nodes(process_ids) -> set[str]:
    """The Ray nodes (their raylets' process ids) that these processes belong to."""
    return {str(psutil.Process(process_id).ppid()) for process_id in process_ids}


def test_actors_on_other_ray_nodes_stream_to_the_server(two_nodes):
    places, counted = train(20)
    assert len(places) == 2
    assert counted["wire.connections"] == 2
    assert counted["dropped.broken_connection"] == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_between_machines_the_stream_is_tcp_with_token_and_tls(two_nodes, monkeypatch):
    from veldt.backends import ray_cluster, ray_streams

    made = []
    monkeypatch.setattr(ray_cluster, "is_one_machine", lambda: False)
    original = ray_streams.ClusterLink.__init__

    def remember(self, *arguments, **options) -> None:
        original(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(ray_streams.ClusterLink, "__init__", remember)
    _, counted = train(20)
    (link,) = made
    assert link.security.uses_tls
    assert counted["wire.connections"] == 2
    assert sum(count for name, count in counted.items() if name.startswith("dropped.wire")) == 0
