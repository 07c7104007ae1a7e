# SPDX-License-Identifier: Apache-2.0
"""What only Ray needs: credits and order of deliveries, refusals, a cluster nobody else reaches."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import psutil
import pytest
import requesting_roles as requesting
import tiny_roles as roles
from driving import bare_topology

from veldt.backends.base import NodeFailure
from veldt.backends.ray.channels import Intake
from veldt.backends.ray.cluster import LocalCluster
from veldt.backends.ray.wiring import Wiring
from veldt.errors import ConfigurationError
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
        assert index is not None
        found.append(int(intake.memory.slots[index].raw[0]))
        intake.memory.full.push(index)
    return found


@in_event_loop
async def test_a_delivery_is_answered_when_its_slot_comes_back() -> None:
    intake = intake_with(num_slots=2)
    delivery = asyncio.create_task(intake.deliver("actor", 0, 0, record(1)))
    await settle()
    assert waiting_in(intake) == [1]
    assert not delivery.done()
    index = intake.memory.full.pop()
    assert index is not None
    intake.memory.free.push(index)
    await settle()
    assert delivery.done()


@in_event_loop
async def test_deliveries_wait_for_a_slot_and_keep_their_order() -> None:
    intake = intake_with(num_slots=1)
    deliveries = [
        asyncio.create_task(intake.deliver("actor", 0, number, record(number + 1)))
        for number in (2, 0, 1)  # as Ray may run them
    ]
    arrived = []
    for _ in range(3):
        await settle()
        arrived += waiting_in(intake)
        index = intake.memory.full.pop()
        assert index is not None
        intake.memory.free.push(index)
    await settle()
    assert arrived == [1, 2, 3]
    assert all(delivery.done() for delivery in deliveries)


@in_event_loop
async def test_a_repeated_delivery_and_one_of_an_older_incarnation_are_dropped() -> None:
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
async def test_nothing_of_a_dead_process_arrives_after_its_successors_first() -> None:
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


@in_event_loop
async def test_closing_answers_those_that_wait_for_a_slot() -> None:
    intake = intake_with(num_slots=1)
    deliveries = [
        asyncio.create_task(intake.deliver("actor", 0, number, record(number)))
        for number in range(3)
    ]
    await settle()
    await intake.close()
    await settle()
    assert all(delivery.done() for delivery in deliveries)
    assert waiting_in(intake) == [0]


def producers_and_a_consumer(num_producers: int, num_slots: int) -> Topology:
    topology = bare_topology()
    queue = topology.queue("records", LAYOUT, num_slots)
    for _ in range(num_producers):
        topology.add("producer", roles.Producer(queue.sink))
    topology.add("consumer", roles.Consumer(queue.source()))
    return topology


@pytest.mark.parametrize(
    ("num_producers", "num_slots", "expected"),
    [(1, 5, [5]), (2, 5, [3, 2]), (3, 3, [1, 1, 1]), (3, 2, [1, 1, 1])],
)
def test_producers_share_the_slots_and_none_goes_without(
    num_producers: int, num_slots: int, expected: list[int]
) -> None:
    wiring = Wiring(producers_and_a_consumer(num_producers, num_slots))
    assert list(wiring.shares("records").values()) == expected
    (inbound,) = wiring.inbound("consumer-0")
    assert inbound.num_slots == max(num_slots, sum(expected))
    assert [wiring.outbound(f"producer-{i}")[0].num_slots for i in range(num_producers)] == expected


def test_a_process_with_two_producers_has_twice_the_share() -> None:
    topology = producers_and_a_consumer(3, 6)
    topology.colocate(*topology.nodes[:2])
    assert Wiring(topology).shares("records") == {"producer-0+producer-1": 4, "producer-2": 2}


def test_a_queue_within_one_process_is_not_sent() -> None:
    topology = producers_and_a_consumer(2, 4)
    topology.colocate(topology.nodes[0], topology.nodes[2])
    wiring = Wiring(topology)
    assert wiring.outbound("producer-0+consumer-0") == []
    assert [spec.num_slots for spec in wiring.outbound("producer-1")] == [2]


def test_lock_free_memory_between_processes_is_refused_before_anything_starts() -> None:
    topology = bare_topology()
    shared = topology.share("weights", np.zeros(3, np.float32))
    nodes = [topology.add("worker", roles.Idle((shared.end,))) for _ in range(2)]
    message = "worker-0, worker-1 meet in the memory of 'weights'.*use --backend process"
    with pytest.raises(ConfigurationError, match=message):
        Wiring(topology)
    topology.colocate(*nodes)
    Wiring(topology)


def test_two_consumers_in_two_processes_are_refused() -> None:
    topology = producers_and_a_consumer(1, 4)
    topology.add("consumer", roles.Consumer(topology.queues[0].source()))
    with pytest.raises(ConfigurationError, match="consumed by consumer-0, consumer-1"):
        Wiring(topology)


def askers_and_an_answerer() -> Topology:
    topology = bare_topology()
    queue = topology.queue("slots", requesting.row_layout(), 4)
    requests = topology.ask_about("requests", queue, num_clients=2)
    for index in range(2):
        topology.add("asker", roles.Idle((queue.sink, requests.client(index))))
    topology.add("answerer", roles.Idle((requests.server,)))
    topology.add("judge", roles.Idle((queue.source(),)))
    return topology


@pytest.mark.parametrize("together", [slice(0), slice(1, 3), slice(0, 2), slice(2, 4)])
def test_questions_between_processes_are_refused_before_anything_starts(together: slice) -> None:
    """Also where some of those who ask, but not all, are in the process that answers."""
    topology = askers_and_an_answerer()
    topology.colocate(*topology.nodes[together])
    message = "ask and answer in the memory of 'requests'.*use --backend process, or put these"
    with pytest.raises(ConfigurationError, match=message):
        Wiring(topology)


def test_questions_within_one_process_are_not_sent() -> None:
    """What comes of them may be, to a consumer elsewhere."""
    topology = askers_and_an_answerer()
    topology.colocate(*topology.nodes[:3])
    wiring = Wiring(topology)
    home = "asker-0+asker-1+answerer-0"
    assert not wiring.has_dependents(home)
    assert [spec.num_slots for spec in wiring.outbound(home)] == [4]


def test_a_process_has_room_for_a_delivery_into_every_slot() -> None:
    wiring = Wiring(producers_and_a_consumer(2, 4))
    assert wiring.calls_at_a_time("consumer-0") == 4
    assert wiring.calls_at_a_time("producer-0") == 0


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("veldt.backends.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r'pip install "veldt\[ray\]"'):
        importlib.import_module("veldt.backends.ray.backend")


@pytest.mark.slow
def test_a_local_cluster_listens_on_loopback_only_and_wants_a_token(ray_cluster: None) -> None:
    from ray._raylet import AuthenticationMode, get_authentication_mode

    assert get_authentication_mode() == AuthenticationMode.TOKEN
    me = psutil.Process()
    addresses = {
        connection.laddr.ip
        for process in (me, *me.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(is_loopback(address) for address in addresses)


@pytest.mark.slow
def test_a_local_cluster_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/nowhere")
    cluster = LocalCluster()
    try:
        with pytest.raises(NodeFailure, match=r"a local cluster did not start: .*proc"):
            cluster.address()
    finally:
        cluster.end()


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
