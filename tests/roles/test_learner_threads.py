# SPDX-License-Identifier: Apache-2.0
"""A learner's threads give way to other programs, and come back."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest
import torch

from veldt.roles import learner_threads
from veldt.roles.learner_threads import LearnerThreads, scheduled_seconds


class Machine:
    """Says how long threads ran and waited, and what time and load it is."""

    def __init__(self, monkeypatch):
        self.now, self.ran, self.waited, self.load = 0.0, 1.0, 0.0, 1.0
        monkeypatch.setattr(learner_threads, "load", lambda: self.load)
        monkeypatch.setattr(learner_threads, "usable_cores", lambda: 2)

    def threads(self, most=2, gives_way=True):
        return LearnerThreads(most, gives_way, lambda: (self.ran, self.waited), lambda: self.now)

    def compute(self, threads, seconds, waiting_share):
        """Steps of a tenth of a second, with a look after each."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            self.ran += 0.1 * (1.0 - waiting_share)
            self.waited += 0.1 * waiting_share
            threads.look()


@pytest.fixture
def machine(monkeypatch):
    before = torch.get_num_threads()
    yield Machine(monkeypatch)
    torch.set_num_threads(before)


def test_one_goes_on_alone_while_they_wait_for_cores(machine):
    threads = machine.threads()
    machine.compute(threads, 5, waiting_share=0.1)
    assert torch.get_num_threads() == threads.number == 2
    machine.compute(threads, 1, waiting_share=0.5)
    assert torch.get_num_threads() == threads.number == 1


def test_they_come_back_once_the_machine_is_less_busy(machine):
    threads = machine.threads()
    machine.compute(threads, 1, waiting_share=0.5)
    machine.load = 2.5
    machine.compute(threads, 60, waiting_share=0.0)
    assert threads.number == 1
    machine.load = 1.2
    machine.compute(threads, 1, waiting_share=0.0)
    assert threads.number == 2


def test_every_try_that_fails_makes_the_next_one_wait_longer(machine):
    threads, tries = machine.threads(), []
    for _ in range(2500):
        was = threads.number
        machine.compute(threads, 0.5, waiting_share=0.5 if was > 1 else 0.0)
        if threads.number > was:
            tries.append(machine.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[:6] == pytest.approx([20, 40, 80, 160, 320, 320], abs=2.0)


@pytest.mark.parametrize(("most", "gives_way"), [(2, False), (1, True)])
def test_what_was_asked_for_stays(machine, most, gives_way):
    threads = machine.threads(most, gives_way)
    machine.compute(threads, 5, waiting_share=0.9)
    assert torch.get_num_threads() == threads.number == most


def test_where_the_kernel_does_not_say_they_stay(machine):
    threads = LearnerThreads(2, True, lambda: None, lambda: machine.now)
    machine.compute(threads, 5, waiting_share=0.9)
    assert threads.number == 2


WAITING = """
import time
from veldt.roles.learner_threads import scheduled_seconds
before, ends = scheduled_seconds(), time.monotonic() + 1.0
while time.monotonic() < ends:
    pass
after = scheduled_seconds()
print(after[1] - before[1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's schedstat")
def test_waiting_for_a_core_is_seen():
    """Three that want one core each wait for two thirds of their time."""
    if scheduled_seconds() is None:
        pytest.skip("this kernel keeps no schedstat")
    core = min(os.sched_getaffinity(0))
    began = time.monotonic()
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, [core]),
        )
        for _ in range(3)
    ]
    waited = [float(program.communicate(timeout=120)[0]) for program in programs]
    assert max(waited) > 0.3, time.monotonic() - began
