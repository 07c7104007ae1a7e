# SPDX-License-Identifier: Apache-2.0
import time

import pytest
import torch

from veldt.roles import learner
from veldt.roles.learner import LearnerThreads, scheduled_seconds


class Machine:
    """How long threads ran and waited, and what time it is."""

    def __init__(self, monkeypatch):
        self.now, self.ran, self.waited = 0.0, 1.0, 0.0
        monkeypatch.setattr(learner, "scheduled_seconds", lambda: (self.ran, self.waited))
        monkeypatch.setattr(learner.time, "monotonic", lambda: self.now)

    def compute(self, threads, seconds, waiting_share):
        """Steps of a tenth of a second, with a check after each."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            self.ran += 0.1 * (1.0 - waiting_share)
            self.waited += 0.1 * waiting_share
            threads.check()


@pytest.fixture
def machine(monkeypatch):
    before = torch.get_num_threads()
    yield Machine(monkeypatch)
    torch.set_num_threads(before)


def test_one_thread_continues_while_they_wait_for_cores(machine):
    threads = LearnerThreads(2, True)
    machine.compute(threads, 5, waiting_share=0.1)
    assert torch.get_num_threads() == threads.number == 2
    machine.compute(threads, 1, waiting_share=0.5)
    assert torch.get_num_threads() == threads.number == 1


@pytest.mark.parametrize("disturbed_seconds", [60, 900])
def test_all_threads_are_used_again_soon_after_a_disturbance(machine, disturbed_seconds):
    threads = LearnerThreads(2, True)
    with_one = 0.0
    for _ in range(10 * disturbed_seconds):
        machine.compute(threads, 0.1, waiting_share=0.5 if threads.number == 2 else 0.1)
        with_one += 0.1 * (threads.number == 1)
    assert with_one > 0.9 * disturbed_seconds
    machine.compute(threads, 12, waiting_share=0.05)
    assert torch.get_num_threads() == threads.number == 2


@pytest.mark.parametrize(("most", "gives_way"), [(2, False), (1, True)])
def test_a_number_that_was_asked_for_stays(machine, most, gives_way):
    threads = LearnerThreads(most, gives_way)
    machine.compute(threads, 5, waiting_share=0.9)
    assert torch.get_num_threads() == threads.number == most


@pytest.mark.skipif(scheduled_seconds() is None, reason="this kernel keeps no schedstat")
def test_time_on_a_core_is_counted():
    before, ends = scheduled_seconds(), time.monotonic() + 0.2
    while time.monotonic() < ends:
        pass
    after = scheduled_seconds()
    assert sum(after) - sum(before) > 0.1
