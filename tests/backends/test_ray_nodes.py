# SPDX-License-Identifier: Apache-2.0
"""Ray nodes that are lost and added while a run continues."""

from collections.abc import Iterator

import psutil
import pytest
from auditing import audited
from driving import advance_until, counter
from several_nodes import SeveralNodes, several_nodes

from veldt.backends.base import BackendOptions, captured
from veldt.backends.ray.backend import RayBackend
from veldt.checkpoints.store import CheckpointStore
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.topology import Topology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[SeveralNodes]:
    with several_nodes() as found:
        yield found


def impala(num_actors: int) -> Topology:
    options = RunOptions(
        env="CartPole-v1", backend="ray", num_actors=num_actors, envs_per_actor=8, total_env_steps=1
    )
    return make_plan("impala", options, {}).topology


def test_a_lost_node_costs_nothing_that_was_committed(nodes, tmp_path):
    """One CPU per process: while the node is gone there is no room for its actor."""
    homes = {raylet_of(node): node for node in nodes.add(count=2)}
    topology = audited(impala(num_actors=2))
    learner = [node.kind for node in topology.nodes].index("learner")
    backend = RayBackend(topology, seed=1, options=BackendOptions(verify=True))

    def committed() -> float:
        return counter(backend, learner, "trained_env_steps")

    try:
        backend.start()
        advance_until(backend, lambda: counter(backend, learner, "incarnations") == 2, "both")
        places = {name: parent(pid) for name, pid in backend.process_ids().items()}
        assert places["learner-0"] not in homes
        assert {places["actor-0"], places["actor-1"]} == homes.keys()

        nodes.lose(homes[places["actor-1"]])
        advance_until(backend, lambda: len(backend.process_ids()) == 2, "the loss to be noticed")
        trained = committed()
        advance_until(backend, lambda: committed() > trained, "training without the lost node")
        assert backend.restarts == 0
        kept = CheckpointStore(tmp_path).save(1, captured(backend), {})
        assert kept is not None

        nodes.add()
        acted = counter(backend, 1, "env_steps")
        advance_until(backend, lambda: counter(backend, 1, "env_steps") > acted, "its return")
        advance_until(backend, lambda: counter(backend, learner, "incarnations") == 3, "its data")
        assert backend.restarts == backend.restarted["actor-1"] == 1
    finally:
        backend.stop()
    assert counter(backend, learner, "missing") == counter(backend, learner, "repeated") == 0
    assert committed() == counter(backend, learner, "committed_env_steps") > 0

    successor = RayBackend(impala(num_actors=2), seed=1)
    successor.restore(kept, generation=1)
    restored = successor.snapshots()
    assert restored[1].counters["env_steps"] == acted, "those of the actor that was not there"


def raylet_of(node: object) -> int:
    return node.all_processes["raylet"][0].process.pid  # type: ignore[attr-defined]


def parent(process_id: int) -> int:
    return psutil.Process(process_id).ppid()
