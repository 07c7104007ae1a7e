# SPDX-License-Identifier: Apache-2.0
"""What a process is sent of the channels: any number of descriptors, and no more than it needs."""

from __future__ import annotations

import tiny_roles as roles
from driving import MakeBackend, advance_until, bare_topology, counter

from veldt.backends.base import doorbells_of
from veldt.backends.shared_memory.fabric import build_fabric
from veldt.options import RunOptions
from veldt.run.plan import make_plan


def test_more_descriptors_than_a_fork_server_takes_still_reach_their_process(
    make_backend: MakeBackend,
) -> None:
    """Each queue has five, and one message of the kernel carries some 250."""
    topology = bare_topology()
    queues = [topology.queue(f"records{k}", roles.record_layout(8), 1) for k in range(80)]
    topology.add("producer", roles.Producer(queues[-1].sink, ends=tuple(q.sink for q in queues)))
    sources = tuple(queue.source() for queue in queues[:-1])
    topology.add("consumer", roles.Consumer(queues[-1].source(), ends=sources))
    backend = make_backend("process", topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 200, "records")


def test_an_actor_is_sent_no_more_where_there_are_more_actors() -> None:
    assert _sent_to_an_actor(2) == _sent_to_an_actor(16)


def _sent_to_an_actor(num_actors: int) -> tuple[int, list[int]]:
    """The numbers of doorbells and of FIFOs of answers."""
    options = RunOptions(env="CartPole-v1", num_actors=num_actors, envs_per_actor=2, device="cpu")
    topology = make_plan("sample_factory", options, {}).topology
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
