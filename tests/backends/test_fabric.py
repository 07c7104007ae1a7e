# SPDX-License-Identifier: Apache-2.0
"""What a process is sent, and what a checkpoint can do without."""

import tiny_roles as roles
from driving import advance_until, bare_topology, counter

from veldt.backends.process.backend import _dispensable_nodes
from veldt.options import RunOptions
from veldt.run.plan import make_plan


def test_more_descriptors_than_a_fork_server_takes_still_reach_their_process(make_backend):
    """Each queue has five, and one message of the kernel carries some 250."""
    topology = bare_topology()
    queues = [topology.queue(f"records{k}", roles.record_layout(8), 1) for k in range(80)]
    topology.add("producer", roles.Producer(queues[-1].sink, ends=tuple(q.sink for q in queues)))
    sources = tuple(queue.source() for queue in queues[:-1])
    topology.add("consumer", roles.Consumer(queues[-1].source(), ends=sources))
    backend = make_backend("process", topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 200, "records")


def test_a_checkpoint_can_do_without_what_nothing_depends_on():
    for name, kind in (("ga3c", "agent"), ("gorila", "actor"), ("sample_factory", "actor")):
        topology = make_plan(name, RunOptions("CartPole-v1", num_actors=2), {}).topology
        assert _dispensable_nodes(topology) == {node.name for node in topology.of(kind)}
