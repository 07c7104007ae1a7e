# SPDX-License-Identifier: Apache-2.0
"""More than the consumer can take: producers wait, and nothing grows."""

from __future__ import annotations

import os

import psutil
import pytest
import tiny_roles as roles
from driving import MakeBackend, advance_for, advance_until, bare_topology, counter

from veldt.errors import ConfigurationError

PRODUCERS = int(os.environ.get("VELDT_PRODUCERS", 24))  # 256 at night
SLOTS = 32


def rss_mb(backend) -> float:
    return (
        sum(psutil.Process(pid).memory_info().rss for pid in backend.process_ids().values()) / 2**20
    )


def test_many_fast_producers_are_held_by_one_slow_consumer(
    make_backend: MakeBackend, figure
) -> None:
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
    produced = sum(counter(backend, node, "produced") for node in range(PRODUCERS))
    taken = counter(backend, PRODUCERS, "received")
    grown = rss_mb(backend) - before
    assert taken > received
    assert max(fills) <= 1.0
    assert produced - taken <= SLOTS + 1
    assert grown < 0.2 * before
    figure(20, "fast producers on one slow consumer", PRODUCERS)
    figure(20, "records under way, of so many slots", [int(produced - taken), SLOTS])
    figure(20, "growth in MB of all processes in 2 s", round(grown, 1))


def test_more_nodes_than_can_be_connected_are_refused_in_one_line(
    make_backend: MakeBackend,
) -> None:
    topology = bare_topology()
    queue = topology.queue("records", roles.record_layout(), SLOTS)
    for _ in range(300):
        topology.add("producer", roles.Producer(queue.sink))
    topology.add("consumer", roles.SlowConsumer(queue.source()))
    backend = make_backend("process", topology)
    with pytest.raises(ConfigurationError, match="give fewer --num-actors"):
        backend.start()
