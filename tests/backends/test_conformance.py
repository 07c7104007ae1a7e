# SPDX-License-Identifier: Apache-2.0
"""What every backend must do with any topology. Checksums are on; roles check what they receive."""

import gc
import time
from collections import Counter

import numpy as np
import pytest
import tiny_roles as roles
from driving import (
    advance_for,
    advance_until,
    bare_topology,
    children,
    counter,
    mapped_memory,
    open_files,
    shared_memory_names,
)

import veldt.backends
from veldt.backends.base import Backend, NodeFailure, captured
from veldt.checkpoints.store import CheckpointStore
from veldt.topology import Topology

RAY = pytest.param("ray", marks=pytest.mark.slow)
every_backend = pytest.mark.parametrize("name", ["serial", "process", RAY])
RAY_APART = pytest.param("ray-apart", marks=pytest.mark.slow)
every_transport = pytest.mark.parametrize("name", ["serial", "process", RAY, RAY_APART])
concurrent_backends = pytest.mark.parametrize("name", ["process", RAY])

BOARD_SIZE = 20_000


def many_to_one(
    num_producers: int = 3, num_slots: int = 5, limit: int = 1 << 40, stall_after: int = 1 << 40
) -> Topology:
    """Producers first, then the consumer."""
    topology = bare_topology()
    queue = topology.queue("records", roles.record_layout(), num_slots)
    for _ in range(num_producers):
        topology.add("producer", roles.Producer(queue.sink, limit))
    topology.add("consumer", roles.Consumer(queue.source(), stall_after))
    return topology


def start_and_advance(backend: Backend) -> None:
    backend.start()
    advance_for(backend, 60.0)


@every_transport
def test_every_record_arrives_once_and_in_its_producers_order(name, make_backend):
    backend = make_backend(name, many_to_one(num_producers=3, limit=200))
    backend.start()
    advance_until(backend, lambda: counter(backend, 3, "received") >= 600, "all records")
    if name != "serial":  # where an idle topology is reported as a deadlock
        advance_for(backend, 0.2)
    assert counter(backend, 3, "received") == 600


@every_transport
def test_a_stalled_consumer_holds_its_producers_without_work(name, make_backend):
    num_producers, num_slots, taken = 2, 4, 6
    topology = many_to_one(num_producers, num_slots, stall_after=taken)
    backend = make_backend(name, topology)
    backend.start()
    ahead = taken + num_slots

    def produced() -> float:
        return sum(counter(backend, node, "produced") for node in range(num_producers))

    advance_until(backend, lambda: produced() >= ahead, "full queue")
    before = counter(backend, 0, "idle_steps")
    advance_for(backend, 0.5)
    assert produced() == ahead
    assert backend.queue_fills() == {"records": 1.0}
    if name != "serial":
        # A sleep lasts up to 0.1 s; polling for room would take thousands of steps.
        assert counter(backend, 0, "idle_steps") - before < 50


@every_transport
def test_all_readers_see_growing_versions_of_whole_vectors(name, make_backend):
    topology = bare_topology()
    board = topology.board("weights", np.zeros(BOARD_SIZE))
    versions = 3000
    topology.add("writer", roles.Writer(board.sink, BOARD_SIZE, versions))
    for _ in range(3):
        topology.add("reader", roles.Reader(board.source(), BOARD_SIZE))
    backend = make_backend(name, topology)
    backend.start()

    def all_have_the_last() -> bool:
        return all(counter(backend, node, "version") == versions for node in range(1, 4))

    advance_until(backend, all_have_the_last, "the last version at every reader")
    newest = backend.parameters("weights")
    assert newest.version == versions
    np.testing.assert_array_equal(newest.vector, np.full(BOARD_SIZE, versions, np.float32))


@every_backend
@pytest.mark.parametrize(
    ("where", "colocated"), [("open", "no"), ("step", "no"), ("step", "turns"), ("step", "threads")]
)
def test_an_exception_stops_the_run_and_names_the_node(name, where, colocated, make_backend):
    topology = many_to_one(num_producers=1)
    topology.add("saboteur", roles.Failing(where))
    if colocated != "no":
        topology.colocate(*topology.nodes, threads=colocated == "threads")
    backend = make_backend(name, topology)
    with pytest.raises(NodeFailure, match="saboteur-0 failed: ValueError: broken on") as raised:
        start_and_advance(backend)
    failure = raised.value
    assert failure.node == "saboteur-0"
    assert failure.cause == "ValueError: broken on purpose"
    assert "tiny_roles.py" in failure.trace
    assert f"in {where}" in failure.trace
    assert backend.restarts == 0


@every_backend
@pytest.mark.parametrize("threads", [False, True])
def test_colocated_nodes_exchange_records_and_weights(name, threads, make_backend):
    topology = many_to_one(num_producers=2, limit=100)
    board = topology.board("weights", np.zeros(100))
    topology.add("writer", roles.Writer(board.sink, size=100, versions=200))
    topology.add("reader", roles.Reader(board.source(), size=100))
    topology.colocate(*topology.nodes, threads=threads)
    backend = make_backend(name, topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, 2, "received") >= 200, "all records")
    advance_until(backend, lambda: counter(backend, 4, "version") == 200, "the last version")


@concurrent_backends
def test_nodes_in_threads_can_be_within_a_step_together(name, make_backend):
    topology = bare_topology()
    nodes = [topology.add(kind, roles.Meeting()) for kind in ("ping", "pong")]
    topology.colocate(*nodes, threads=True)
    backend = make_backend(name, topology)
    backend.start()
    advance_until(backend, lambda: counter(backend, 1, "met") == 1, "a meeting")
    assert counter(backend, 0, "process_id") == counter(backend, 1, "process_id")


def test_serial_runs_the_same_seed_in_the_same_order(make_backend):
    orders = []
    for seed in (1, 1, 2):
        backend = make_backend("serial", many_to_one(num_producers=3, num_slots=4), seed)
        backend.start()
        for _ in range(5):
            backend.advance(0.0)
        orders.append(counter(backend, 3, "order_of_arrival"))
    assert orders[0] == orders[1] != orders[2]


def test_serial_reports_a_deadlock(make_backend):
    topology = bare_topology()
    topology.add("idle", roles.Idle())
    backend = make_backend("serial", topology)
    backend.start()
    with pytest.raises(NodeFailure, match="idle-0 failed: every node waits"):
        advance_for(backend, 60.0)


@every_backend
def test_stopping_leaves_nothing_behind(name, request):
    """Descriptors, processes and memory; also when the run was never started or stopped twice.

    What a process has once may come with the first run, and workers of another test's Ray end when
    they like; what runs leave behind comes with each."""
    request.getfixturevalue("ray_cluster" if name == "ray" else "fork_server")
    run_and_stop(name, records=10)

    def left_by_two_runs() -> Counter[object]:
        before = state_of_this_process()
        run_and_stop(name, records=0)
        run_and_stop(name, records=50)
        deadline = time.monotonic() + 20.0
        while (left := state_of_this_process() - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    assert not left_by_two_runs() or not left_by_two_runs()


def state_of_this_process() -> Counter[object]:
    gc.collect()
    return Counter([*children(), *open_files(), *mapped_memory(), *shared_memory_names()])


def run_and_stop(name: str, records: int) -> None:
    backend = veldt.backends.make_backend(name, many_to_one(num_producers=2), seed=1)
    try:
        if records:
            backend.start()
            advance_until(backend, lambda: counter(backend, 2, "received") > records, "records")
    finally:
        backend.stop()
        backend.stop()


@every_backend
@pytest.mark.parametrize("threads", [False, True])
def test_a_run_continues_from_what_was_captured(name, threads, make_backend, tmp_path):
    """Roles, counters and boards; two colocated nodes, because each gives its own part."""
    first = make_backend(name, keepers(threads))
    first.run_dir = tmp_path / "first"
    first.start()
    advance_until(first, lambda: counter(first, 1, "version") >= 50, "some versions")
    parts = captured(first)
    saved = [int(parts[node]["role.steps"]) for node in ("keeper-0", "writer-0")]
    assert saved[0] > 0
    assert saved[1] >= 50
    if name != "process":  # there the board is read a moment before the roles
        assert int(parts["channels"]["version.weights"]) == saved[1]
    first.stop()
    store = CheckpointStore(tmp_path / "checkpoints")
    path = store.save(1, parts, {})

    second = make_backend(name, keepers(threads))
    second.run_dir = tmp_path / "second"
    second.restore(path, generation=1)
    assert second.parameters("weights").version == int(parts["channels"]["version.weights"])
    second.start()
    advance_until(second, lambda: counter(second, 0, "steps") > saved[0] + 10, "more steps")
    assert counter(second, 0, "began_at") == saved[0]
    assert counter(second, 1, "began_at") == saved[1]


def keepers(threads: bool) -> Topology:
    topology = bare_topology()
    board = topology.board("weights", np.zeros(10))
    nodes = [
        topology.add("keeper", roles.Keeper()),
        topology.add("writer", roles.KeptWriter(board.sink)),
    ]
    topology.add("reader", roles.Reader(board.source(), size=10))
    topology.colocate(*nodes, threads=threads)
    return topology
