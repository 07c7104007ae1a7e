# SPDX-License-Identifier: Apache-2.0
"""SEED RL and R2D2 over processes."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from driving import advance_until

from veldt.backends.base import BackendOptions
from veldt.backends.process.backend import ProcessBackend
from veldt.backends.shared_memory.fabric import SocketLink
from veldt.networks import NetworkFactory
from veldt.options import RunOptions
from veldt.role import leaves_of
from veldt.run.plan import Plan, make_plan

pytestmark = pytest.mark.slow

TINY_R2D2 = {
    "architecture": "r2d2",
    "burn_in_steps": 5,
    "unroll_steps": 10,
    "batch_sequences": 4,
    "min_replay_sequences": 8,
}


def planned(architecture: str = "seed_rl", **own) -> Plan:
    run = RunOptions(
        env="CartPole-v1",
        backend="process",
        num_actors=2,
        envs_per_actor=4,
        total_env_steps=10**9,
        network_options={"recurrent_size": 8, "hidden_sizes": (16,)},
    )
    return make_plan(architecture, run, {"trajectory_steps": 5, **own})


@contextmanager
def running(**own) -> Iterator[ProcessBackend]:
    plan = planned(**own)
    backend = ProcessBackend(plan.topology, seed=1, options=BackendOptions(verify=True))
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()


def counters(backend) -> dict[str, float]:
    """All counters, summed over nodes."""
    found: dict[str, float] = {}
    for snapshot in backend.snapshots():
        for name, value in snapshot.counters.items():
            found[name] = found.get(name, 0.0) + value
    return found


def updates(backend) -> float:
    return counters(backend).get("updates", 0.0)


def connections(backend) -> float:
    return counters(backend).get("wire.connections", 0.0)


def advance_until_all_take_part(backend, num_groups: int = 2) -> None:
    advance_until(backend, lambda: connections(backend) == num_groups, "all to connect")
    before = updates(backend)
    advance_until(backend, lambda: updates(backend) > before + 5, "updates")


def link_of(backend: ProcessBackend) -> SocketLink:
    (link,) = backend._fabric.streams.values()
    assert isinstance(link, SocketLink)
    return link


@pytest.mark.parametrize(
    "options", [{}, {"sampling_options": {"groups_per_actor": 2}}, TINY_R2D2], ids=str
)
def test_it_trains_over_processes_and_leaves_nothing_behind(options):
    with running(**options) as backend:
        advance_until_all_take_part(backend, 4 if "sampling_options" in options else 2)
        directory = Path(link_of(backend).address.removeprefix("unix:")).parent
        assert counters(backend)["wire.bytes_up"] > 0
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        listening = [
            connection
            for pid in backend.process_ids().values()
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == []
    assert not directory.exists()


def test_an_actor_has_neither_weights_nor_a_way_to_them():
    plan = planned()
    backend = ProcessBackend(plan.topology, seed=1)
    try:
        actors = [node for node in plan.topology.nodes if node.kind == "actor"]
        part = backend._fabric.part_for(actors[:1])
        assert part.boards == {}
        assert part.queues == {}
        assert part.shared == {}
        assert set(part.streams) == {"stream"}
        assert not any(isinstance(value, NetworkFactory) for _, value in leaves_of(actors[0].role))
    finally:
        backend.stop()
