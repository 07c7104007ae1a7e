# SPDX-License-Identifier: Apache-2.0
"""Killed and hanging nodes, where nodes are processes."""

import random

import pytest
import tiny_roles as roles
from driving import advance_for, advance_until, bare_topology, counter, strike

from veldt.backends.base import NodeFailure
from veldt.backends.supervision import RestartPolicy
from veldt.topology import Topology

RAY = pytest.param("ray", marks=pytest.mark.slow)
concurrent_backends = pytest.mark.parametrize("name", ["process", RAY])


def one_to_one(producer: type[roles.Producer] = roles.Producer, num_slots: int = 2) -> Topology:
    topology = bare_topology()
    queue = topology.queue("records", roles.record_layout(), num_slots)
    topology.add("producer", producer(queue.sink))
    topology.add("consumer", roles.Consumer(queue.source()))
    return topology


@concurrent_backends
def test_a_killed_node_comes_back_and_its_slots_are_reclaimed(name, make_backend):
    """The first incarnation holds every slot when it dies; without them nothing could follow."""
    backend = make_backend(name, one_to_one(roles.Hoarder))
    backend.start()
    advance_until(backend, lambda: counter(backend, 0, "hoarded") == 1, "all slots taken")
    assert counter(backend, 1, "received") == 0
    strike(backend, 0)
    advance_until(backend, lambda: counter(backend, 1, "received") > 10, "records again")
    advance_until(backend, lambda: counter(backend, 0, "incarnation") == 1, "its counters")
    assert counter(backend, 1, "newest_incarnation") == 1
    assert backend.restarts == 1


@concurrent_backends
def test_kills_in_full_flight_deliver_no_torn_and_no_late_record(name, make_backend):
    """The consumer checks every record, its checksum, and the order of incarnations."""
    backend = make_backend(name, one_to_one(num_slots=8))
    backend.start()
    kills = 2 if name == "ray" else 8
    draw = random.Random(1)
    for kill in range(kills):
        advance_until(
            backend,
            lambda expected=kill: (
                counter(backend, 1, "newest_incarnation") == expected
                and counter(backend, 1, "received") > 0
                and counter(backend, 0, "incarnation") == expected
            ),
            f"records of incarnation {kill}",
        )
        advance_for(backend, 0.02 * draw.random())
        strike(backend, 0)
    advance_until(backend, lambda: counter(backend, 1, "newest_incarnation") == kills, "the last")
    assert backend.restarts == kills


@concurrent_backends
def test_a_killed_node_that_cannot_restart_ends_the_run(name, make_backend):
    topology = one_to_one()
    topology.add("idle", roles.Idle())
    backend = make_backend(name, topology)
    backend.start()
    strike(backend, 2)
    with pytest.raises(NodeFailure, match="idle-0 failed: its process") as raised:
        advance_for(backend, 60.0)
    assert raised.value.node == "idle-0"


@concurrent_backends
def test_a_node_that_hangs_is_replaced_and_its_stack_is_noted(name, make_backend):
    backend = make_backend(name, one_to_one(roles.Sleeper), hang_seconds=2.0)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 10, "records of a successor")
    assert counter(backend, 1, "newest_incarnation") == backend.restarts == 1
    silence = next(note for note in backend.notes if "was silent for" in note)
    assert silence.startswith("producer-0 ")
    assert "tiny_roles.py" in silence


@concurrent_backends
def test_a_node_that_keeps_dying_ends_the_run(name, make_backend):
    topology = bare_topology()
    topology.add("lemming", roles.Lemming())
    backend = make_backend(name, topology)
    backend._policies["lemming-0"] = RestartPolicy(restarts_per_minute=2)
    backend.start()
    with pytest.raises(NodeFailure, match="lemming-0 failed: its process ended"):
        advance_for(backend, 60.0)
    assert backend.restarts == 2
