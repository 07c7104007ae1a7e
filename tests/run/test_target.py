# SPDX-License-Identifier: Apache-2.0
"""Fresh episodes decide whether a target is reached, and when they are played."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from veldt.run.evaluation import Target


def told(mean=0.0, episodes=0, updates=1):
    """What a run's telemetry says."""
    return SimpleNamespace(
        mean_return_100=mean, episodes=episodes, updates=updates, has_100_returns=episodes >= 100
    )


def target(*returns, checks_by_clock=True):
    """A target of 10 in the eyes of evaluations with these means, and the attempts made."""
    attempts, left = [], list(returns)

    def play(attempt, seconds):
        attempts.append(attempt)
        return np.full(20, left.pop(0))

    return Target(10.0, 20, checks_by_clock, play), attempts


def after_its_first_update(goal):
    """Half a second later it may be looked at."""
    assert not goal.is_reached(told(), 0.0, None)
    return goal


def test_training_episodes_at_the_target_are_confirmed_by_one_round():
    goal, attempts = target(12.0, checks_by_clock=False)
    assert goal.is_reached(told(10.0, 100), 1.0, None)
    assert attempts == [0]
    assert goal.evaluation_return == 12.0


def test_after_a_round_below_it_100_more_episodes_are_waited_for():
    goal, attempts = target(9.0, 11.0, checks_by_clock=False)
    assert not goal.is_reached(told(10.0, 150), 1.0, None)
    assert not goal.is_reached(told(10.0, 249), 1.0, None)
    assert goal.is_reached(told(10.0, 250), 1.0, None)
    assert len(attempts) == 2


def test_a_look_counts_when_a_second_round_agrees():
    goal, attempts = target(11.0, 9.0, 11.0, 12.0)
    after_its_first_update(goal)
    assert not goal.is_reached(told(-50.0, 30), 3.0, None)
    assert attempts == [0, 1]
    assert not goal.is_reached(told(-50.0, 31), 3.4, None)  # too soon for another look
    assert goal.is_reached(told(-50.0, 40), 60.0, None)


def test_looks_take_a_fifth_of_the_time():
    attempts = []

    def play(attempt, seconds):
        attempts.append(attempt)
        time.sleep(0.2)
        return np.full(20, 9.0)

    goal = after_its_first_update(Target(10.0, 20, True, play))
    for elapsed in (3.0, 3.9):  # one look takes 0.2 s, so the next is due after a second
        assert not goal.is_reached(told(), elapsed, None)
    assert attempts == [0]
    assert not goal.is_reached(told(), 30.0, None)
    assert attempts == [0, 0]


def test_nobody_looks_before_the_first_update_or_on_the_serial_backend():
    goal, attempts = target(11.0, 11.0)
    assert not goal.is_reached(told(updates=0), 60.0, None)
    assert not goal.is_reached(told(updates=1), 60.1, None)
    assert not goal.is_reached(told(updates=2), 60.5, None)
    quiet, others = target(11.0, 11.0, checks_by_clock=False)
    for elapsed in (0.0, 60.0):
        assert not quiet.is_reached(told(), elapsed, None)
    assert attempts == others == []
    assert goal.is_reached(told(updates=3), 60.7, None)


def test_looks_whose_episodes_do_not_end_get_longer():
    allowed = []

    def play(attempt, seconds):
        allowed.append(seconds)
        return np.full(20 if seconds >= 16.0 else 5, 12.0)

    goal = after_its_first_update(Target(10.0, 20, True, play))
    reached = [goal.is_reached(told(), elapsed, 600.0) for elapsed in (3.0, 30.0, 60.0)]
    assert reached == [False, False, True]
    assert allowed == [4.0, 8.0, 16.0, 600.0]


def test_no_evaluation_takes_longer_than_the_run_may():
    allowed = []
    goal = Target(10.0, 20, True, lambda attempt, seconds: allowed.append(seconds) or np.zeros(20))
    after_its_first_update(goal)
    assert not goal.is_reached(told(), 3.0, 1.5)
    assert allowed == [1.5]
