# SPDX-License-Identifier: Apache-2.0
"""More than the consumer can take: producers wait, and nothing grows."""

from __future__ import annotations

import os

import psutil
import pytest
import tiny_roles as roles
from driving import MakeBackend, advance_for, advance_until, bare_topology, counter

from veldt.backends.base import doorbells_of
from veldt.backends.shared_memory.fabric import build_fabric
from veldt.options import RunOptions
from veldt.run.plan import make_plan

PRODUCERS = int(os.environ.get("VELDT_PRODUCERS", 24))  # 256 at night
SLOTS = 32


def rss_mb(backend) -> float:
    return (
        sum(psutil.Process(pid).memory_info().rss for pid in backend.process_ids().values()) / 2**20
    )


def test_many_fast_producers_are_held_by_one_slow_consumer(make_backend: MakeBackend) -> None:
    """Each producer alone could fill the queue many times faster than it is emptied."""
    topology = bare_topology()
    queue = topology.queue("records", roles.record_layout(), SLOTS)
    for _ in range(PRODUCERS):
        topology.add("producer", roles.Producer(queue.sink))
    topology.add("consumer", roles.SlowConsumer(queue.source()))
    backend = make_backend("process", topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, PRODUCERS, "received") > 200, "records")
    before, received = rss_mb(backend), counter(backend, PRODUCERS, "received")
    fills = []
    for _ in range(20):
        advance_for(backend, 0.1)
        fills.append(backend.queue_fills()["records"])
    counters = [snapshot.counters for snapshot in backend.snapshots()]  # as if at one moment
    produced = sum(counters[node]["produced"] for node in range(PRODUCERS))
    taken = counters[PRODUCERS]["received"]
    grown = rss_mb(backend) - before
    assert taken > received
    assert max(fills) <= 1.0
    assert -SLOTS <= produced - taken <= SLOTS + 1
    assert grown < 0.2 * before


def test_more_descriptors_than_a_fork_server_takes_still_reach_their_process(
    make_backend: MakeBackend,
) -> None:
    """Each queue has five; some 250 are the most that one message of the kernel's carries."""
    topology = bare_topology()
    queues = [topology.queue(f"records{k}", roles.record_layout(8), 1) for k in range(80)]
    topology.add("producer", roles.Scatterer(tuple(queue.sink for queue in queues)))
    topology.add("consumer", roles.Gatherer(tuple(queue.source() for queue in queues)))
    backend = make_backend("process", topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 200, "records")


@pytest.mark.parametrize("architecture", ["impala", "sample_factory"])
def test_an_actor_is_sent_no_more_where_there_are_more_actors(architecture: str) -> None:
    assert _sent_to_an_actor(architecture, 2) == _sent_to_an_actor(architecture, 16)


def _sent_to_an_actor(architecture: str, num_actors: int) -> tuple[int, list[int]]:
    """Doorbells of others, and answers that it could hear."""
    options = RunOptions(env="CartPole-v1", num_actors=num_actors, envs_per_actor=2, device="cpu")
    topology = make_plan(architecture, options, {}).topology
    fabric = build_fabric(topology, between_processes=True, verify=False)
    try:
        for group in topology.groups():
            fabric.doorbells.update(doorbells_of(group))
        last = [node for node in topology.nodes if node.kind == "actor"][-1]
        part = fabric.part_for([last])
        assert last.name in part.doorbells
        answers = [len(requests.answered) for requests in part.requests.values()]
        return len(part.doorbells), answers
    finally:
        fabric.close()
