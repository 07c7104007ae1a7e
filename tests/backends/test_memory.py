# SPDX-License-Identifier: Apache-2.0
"""Shared memory and wakers within a process."""

import threading
import time

from veldt.backends.shared_memory.memory import Block, Waker


def test_memory_outlives_its_descriptor_but_not_its_last_view():
    block = Block(8, "veldt-short-lived", between_processes=True)
    view = block.array("int64", 1)
    block.close()
    block.close()
    view[0] = 7
    assert "veldt-short-lived" in open_memory()
    del block, view
    assert "veldt-short-lived" not in open_memory()


def open_memory() -> str:
    with open("/proc/self/maps") as maps:
        return maps.read()


def test_a_waker_used_before_or_during_a_wait_ends_it():
    waker = Waker()
    waker.wake()
    waker.wake()
    started = time.monotonic()
    waker.wait(60.0)
    answered = time.monotonic()
    waker.wait(0.05)  # both were answered by one wait; this one times out
    assert time.monotonic() - answered > 0.04
    timer = threading.Timer(0.05, waker.wake)
    timer.start()
    waker.wait(60.0)
    timer.join()
    assert time.monotonic() - started < 30.0
    waker.close()
