# SPDX-License-Identifier: Apache-2.0
"""Killed nodes, killed supervisors and interrupts, where nodes are processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_roles as roles
from driving import (
    MakeBackend,
    advance_for,
    advance_until,
    alive,
    bare_topology,
    counter,
    strike,
    wait_until,
)

import veldt
from veldt.backends.base import NodeFailure
from veldt.backends.supervision import RestartPolicy
from veldt.topology import Topology

Figure = Callable[[int, str, object], None]
RAY = pytest.param("ray", marks=pytest.mark.slow)
concurrent_backends = pytest.mark.parametrize("name", ["process", RAY])


def one_to_one(producer: type[roles.Producer] = roles.Producer, num_slots: int = 2) -> Topology:
    topology = bare_topology()
    queue = topology.queue("records", roles.record_layout(), num_slots)
    topology.add("producer", producer(queue.sink))
    topology.add("consumer", roles.Consumer(queue.source()))
    return topology


@concurrent_backends
def test_a_killed_node_comes_back_and_its_slots_are_reclaimed(
    name: str, make_backend: MakeBackend
) -> None:
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
def test_kills_in_full_flight_deliver_no_torn_and_no_late_record(
    name: str, make_backend: MakeBackend
) -> None:
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
def test_a_killed_node_that_cannot_restart_ends_the_run(
    name: str, make_backend: MakeBackend
) -> None:
    topology = one_to_one()
    topology.add("idle", roles.Idle())
    backend = make_backend(name, topology)
    backend.start()
    strike(backend, 2)
    with pytest.raises(NodeFailure, match="idle-0 failed: its process") as raised:
        advance_for(backend, 60.0)
    assert raised.value.node == "idle-0"


@concurrent_backends
def test_a_node_that_hangs_is_replaced_and_its_stack_is_noted(
    name: str, make_backend: MakeBackend
) -> None:
    backend = make_backend(name, one_to_one(roles.Sleeper), hang_seconds=2.0)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 10, "records of a successor")
    assert counter(backend, 1, "newest_incarnation") == backend.restarts == 1
    silence = next(note for note in backend.notes if "was silent for" in note)
    assert silence.startswith("producer-0 ")
    assert "tiny_roles.py" in silence


@concurrent_backends
def test_a_node_that_keeps_dying_ends_the_run(name: str, make_backend: MakeBackend) -> None:
    topology = bare_topology()
    topology.add("lemming", roles.Lemming())
    backend = make_backend(name, topology)
    backend._policies["lemming-0"] = RestartPolicy(restarts_per_minute=2)
    backend.start()
    with pytest.raises(NodeFailure, match="lemming-0 failed: its process ended"):
        advance_for(backend, 60.0)
    assert backend.restarts == 2


SUPERVISOR = """
import sys
sys.path.insert(0, {here!r})
import veldt.backends
from driving import advance_until, children, counter
from test_faults import one_to_one

if __name__ == "__main__":
    backend = veldt.backends.make_backend({name!r}, one_to_one(), seed=1)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "received") > 10, "records")
    # Ray's own agents, which are children too, look after themselves but take longer.
    nodes = backend.process_ids().values()
    print(*(children() if {name!r} == "process" else nodes), flush=True)
    while True:
        backend.advance(1.0)
"""


@concurrent_backends
def test_a_killed_supervisor_leaves_no_process(name: str, tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR.format(here=here, name=name))
    root = str(Path(veldt.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": f"{root}:{here}"}
    supervisor = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert supervisor.stdout is not None
        processes = [int(number) for number in supervisor.stdout.readline().split()]
        assert len(processes) >= 2
    finally:
        supervisor.kill()
        supervisor.communicate()
    wait_until(
        lambda: not any(alive(number) for number in processes),
        "the end of all processes",
        seconds=2.0 if name == "process" else 60.0,  # Ray's time is its own
    )
