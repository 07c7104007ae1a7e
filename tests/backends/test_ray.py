# SPDX-License-Identifier: Apache-2.0
"""Ray alone: credits and order of deliveries, refusals, local clusters, real architectures."""

import asyncio
import ipaddress
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tiny_roles as roles
from driving import advance_until, bare_topology, counter

from veldt.backends.base import NodeFailure
from veldt.backends.ray.channels import Intake
from veldt.backends.ray.cluster import LocalCluster
from veldt.backends.ray.wiring import Wiring
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.topology import QueueSpec, Topology

LAYOUT = roles.record_layout(words=1)


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def record(value: int) -> np.ndarray:
    return np.full(LAYOUT.nbytes, value, np.uint8)


def intake_with(num_slots: int) -> Intake:
    return Intake(QueueSpec("queue", LAYOUT, num_slots), verify=False)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def waiting_in(intake: Intake) -> list[int]:
    """The first byte of each record that waits for the consumer, oldest first."""
    found = []
    for _ in range(len(intake.memory.full)):
        index = intake.memory.full.pop()
        found.append(int(intake.memory.slots[index].raw[0]))
        intake.memory.full.push(index)
    return found


@in_event_loop
async def test_deliveries_keep_their_order_and_are_answered_when_their_slot_comes_back():
    intake = intake_with(num_slots=1)
    deliveries = [
        asyncio.create_task(intake.deliver("actor", 0, number, record(number + 1)))
        for number in (2, 0, 1)  # as Ray may run them
    ]
    arrived = []
    for count in range(3):
        await settle()
        assert sum(delivery.done() for delivery in deliveries) == count
        arrived += waiting_in(intake)
        index = intake.memory.full.pop()
        intake.memory.free.push(index)
    await settle()
    assert arrived == [1, 2, 3]
    assert all(delivery.done() for delivery in deliveries)


@in_event_loop
async def test_a_repeated_delivery_and_one_of_an_older_incarnation_are_dropped():
    intake = intake_with(num_slots=4)
    first = asyncio.create_task(intake.deliver("actor", 1, 0, record(1)))
    await settle()
    again = asyncio.create_task(intake.deliver("actor", 1, 0, record(2)))
    await intake.deliver("actor", 0, 0, record(3))
    await settle()
    assert waiting_in(intake) == [1]
    assert not again.done(), "or its producer would be ahead by a slot more"
    gap = asyncio.create_task(intake.deliver("actor", 1, 7, record(5)))  # 1 to 6 never come
    await settle()
    assert not gap.done()
    successor = asyncio.create_task(intake.deliver("actor", 2, 0, record(4)))
    await settle()
    assert waiting_in(intake) == [1, 4]
    assert gap.done()
    await intake.close()
    await settle()
    assert first.done()
    assert again.done()
    assert successor.done()


@in_event_loop
async def test_nothing_of_a_dead_process_arrives_after_its_successors_first():
    intake = intake_with(num_slots=1)
    deliveries = [
        asyncio.create_task(intake.deliver("actor", incarnation, number, record(value)))
        for incarnation, number, value in ((0, 2, 3), (0, 0, 1), (0, 1, 2), (1, 0, 10), (1, 1, 11))
    ]
    arrived = []
    for _ in range(5):
        await settle()
        if (index := intake.memory.full.pop()) is not None:
            arrived.append(int(intake.memory.slots[index].raw[0]))
            intake.memory.free.push(index)
    await settle()
    assert arrived == sorted(arrived)
    assert arrived[-2:] == [10, 11]
    assert all(delivery.done() for delivery in deliveries)


def producers_and_a_consumer(num_producers: int, num_slots: int) -> Topology:
    topology = bare_topology()
    queue = topology.queue("records", LAYOUT, num_slots)
    for _ in range(num_producers):
        topology.add("producer", roles.Producer(queue.sink))
    topology.add("consumer", roles.Consumer(queue.source()))
    return topology


@pytest.mark.parametrize(
    ("num_producers", "num_slots", "expected"), [(1, 5, [5]), (2, 5, [3, 2]), (3, 2, [1, 1, 1])]
)
def test_producers_share_the_slots_and_none_goes_without(num_producers, num_slots, expected):
    wiring = Wiring(producers_and_a_consumer(num_producers, num_slots))
    assert list(wiring.shares("records").values()) == expected
    (inbound,) = wiring.inbound("consumer-0")
    assert inbound.num_slots == max(num_slots, sum(expected))
    assert [wiring.outbound(f"producer-{i}")[0].num_slots for i in range(num_producers)] == expected
    assert wiring.calls_at_a_time("consumer-0") == inbound.num_slots
    assert wiring.calls_at_a_time("producer-0") == 0


def two_consumers() -> Topology:
    topology = producers_and_a_consumer(1, 4)
    topology.add("consumer", roles.Consumer(topology.queues[0].source()))
    return topology


def lock_free_memory() -> Topology:
    topology = bare_topology()
    shared = topology.share("weights", np.zeros(3, np.float32))
    for _ in range(2):
        topology.add("worker", roles.Idle((shared.end,)))
    return topology


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (two_consumers(), "consumed by consumer-0, consumer-1.*use --backend process"),
        (lock_free_memory(), "worker-0, worker-1 use the shared memory 'weights'.*--backend"),
    ],
)
def test_what_needs_shared_memory_is_refused_before_anything_starts(topology, message):
    with pytest.raises(ConfigurationError, match=message):
        Wiring(topology)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['ray'] = None", 'pip install "veldt[ray]"'),
        ("import ray", "Ray was imported before this run could require a token"),
    ],
)
def test_ray_that_is_missing_or_without_a_token_is_refused(before, message):
    code = f"import sys; {before}; from veldt.backends.ray.cluster import Cluster; Cluster().join()"
    given = {name: each for name, each in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_local_cluster_listens_on_loopback_only(ray_cluster):
    me = psutil.Process()
    addresses = {
        connection.laddr.ip
        for process in (me, *me.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(is_loopback(address) for address in addresses)


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


@pytest.mark.slow
def test_nobody_reaches_a_local_cluster_without_its_token(ray_cluster):
    import ray

    with grpc.insecure_channel(ray.get_runtime_context().gcs_address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")

        def answer_to(*tokens: str) -> grpc.StatusCode:
            metadata = [("authorization", f"Bearer {token}") for token in tokens]
            _, call = ask.with_call(b"", metadata=metadata, timeout=20.0)
            return call.code()

        assert answer_to(os.environ["RAY_AUTH_TOKEN"]) == grpc.StatusCode.OK
        for wrong in ((), ("00" * 32,)):
            with pytest.raises(grpc.RpcError) as refused:
                answer_to(*wrong)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.slow
def test_a_local_cluster_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/proc/nowhere")
    cluster = LocalCluster()
    try:
        with pytest.raises(NodeFailure, match=r"a local cluster did not start: .*proc"):
            cluster.address()
    finally:
        cluster.end()


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "num_actors"), [("impala", 1), ("a2c", 2)])
def test_actors_and_learner_make_progress(architecture, num_actors, make_backend):
    """The barrier of A2C holds on Ray, too."""
    options = RunOptions(env="CartPole-v1", backend="ray", num_actors=num_actors)
    topology = make_plan(architecture, options, {}).topology
    backend = make_backend("ray", topology, timeline_seconds=5.0)
    learner = [node.kind for node in topology.nodes].index("learner")
    before = backend.parameters("weights")
    backend.start()
    advance_until(backend, lambda: counter(backend, learner, "updates") >= 20, "updates")
    after = backend.parameters("weights")
    assert after.version >= 20
    assert np.abs(after.vector - before.vector).max() > 0.0
    assert counter(backend, 0, "env_steps") > 0
    spans = backend.take_spans()
    assert set(spans) == {node.name for node in topology.nodes}
    learned = spans["learner-0"]
    assert np.count_nonzero(learned.index == learned.stages.index("learn")) >= 20
    backend.stop()
    if architecture == "a2c":
        assert backend.snapshots()[learner].lag.max == 0
    assert backend.parameters("weights").version >= after.version
