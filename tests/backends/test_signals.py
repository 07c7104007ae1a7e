# SPDX-License-Identifier: Apache-2.0
"""Slot numbers through pipes and deques; doorbells that lose no ring."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Iterator

import pytest

from veldt.backends.shared_memory.memory import Doorbell, IndexDeque, IndexPipe, Indices


@pytest.fixture(params=[IndexPipe, IndexDeque])
def indices(request: pytest.FixtureRequest) -> Iterator[Indices]:
    made: Indices = request.param()
    yield made
    made.close()


def test_numbers_come_out_in_order_and_only_once(indices: Indices) -> None:
    numbers = [0, 7, 2**32 - 1, 7]
    for number in numbers:
        indices.push(number)
    assert len(indices) == 4
    assert [indices.pop() for _ in numbers] == numbers
    assert indices.pop() is None
    assert len(indices) == 0


def test_each_number_goes_to_one_of_several_takers(indices: Indices) -> None:
    count = 4000
    taken: list[list[int]] = [[], [], []]

    def take(into: list[int]) -> None:
        while (number := indices.pop()) is not None:
            into.append(number)

    for number in range(count):
        indices.push(number)
    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*taken)) == list(range(count))
    assert all(into == sorted(into) for into in taken)


def test_a_ring_before_the_wait_ends_it_at_once() -> None:
    bell = Doorbell()
    bell.ring()
    bell.ring()
    started = time.monotonic()
    bell.wait(60.0)
    assert time.monotonic() - started < 30.0
    bell.close()


def test_a_wait_without_a_ring_ends_by_itself() -> None:
    bell = Doorbell()
    bell.ring()
    bell.wait(60.0)
    bell.wait(0.01)  # both rings are answered by one wait; this one times out
    bell.close()


def test_a_ring_from_a_thread_wakes_the_sleeper() -> None:
    bell = Doorbell()
    ringer = threading.Timer(0.05, bell.ring)
    ringer.start()
    started = time.monotonic()
    bell.wait(60.0)
    ringer.join()
    assert time.monotonic() - started < 30.0
    bell.close()


def ring_and_push(bell: Doorbell, pipe: IndexPipe) -> None:
    pipe.push(42)
    bell.ring()


def test_pipes_and_doorbells_reach_another_process(fork_server: None) -> None:
    bell, pipe = Doorbell(), IndexPipe()
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=ring_and_push, args=(bell, pipe))
    child.start()
    bell.wait(60.0)
    assert pipe.pop() == 42
    child.join()
    assert child.exitcode == 0
    bell.close()
    pipe.close()
