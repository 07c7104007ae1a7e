# SPDX-License-Identifier: Apache-2.0
"""SEED RL on Ray: actors on other Ray nodes than the server, and between them TCP with TLS."""

import shutil
from collections.abc import Iterator

import psutil
import pytest
from driving import advance_until
from several_nodes import SeveralNodes, several_nodes

from veldt.options import RunOptions
from veldt.run.plan import make_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="TLS needs openssl"),
]


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[SeveralNodes]:
    """One CPU each: the server fills the head, so each actor is on a node of its own."""
    with several_nodes() as nodes:
        nodes.add(count=2)
        yield nodes


def test_actors_on_other_ray_nodes_stream_over_tls(three_nodes, monkeypatch):
    from veldt.backends.ray.backend import RayBackend
    from veldt.backends.ray.channels import ClusterLink

    made: list[ClusterLink] = []
    monkeypatch.setattr(
        "veldt.backends.ray.wiring.ClusterLink",
        lambda spec: made.append(ClusterLink(spec)) or made[-1],
    )
    options = RunOptions(
        env="CartPole-v1", backend="ray", num_actors=2, envs_per_actor=8, total_env_steps=10**9
    )
    backend = RayBackend(make_plan("seed_rl", options, {}).topology, seed=1)

    def counted(name: str) -> float:
        return sum(snapshot.counters.get(name, 0.0) for snapshot in backend.snapshots())

    try:
        backend.start()
        advance_until(backend, lambda: counted("updates") >= 20, "updates")
        advance_until(backend, lambda: counted("wire.connections") == 2, "both streams")
        places = {
            psutil.Process(process_id).ppid() for process_id in backend.process_ids().values()
        }
    finally:
        backend.stop()
    (link,) = made
    assert len(places) == 3
    assert link.security.certificate
    assert counted("dropped.broken_connection") == 0
    refused = (name for snapshot in backend.snapshots() for name in snapshot.counters)
    assert sum(counted(name) for name in refused if name.startswith("dropped.wire")) == 0
