# SPDX-License-Identifier: Apache-2.0
"""Fresh episodes decide whether a target is reached, and when they are played."""

import time
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import veldt
from veldt.run.evaluation import Target
from veldt.telemetry.log_files import EVALUATION, metric_rows


def telemetry(mean=0.0, episodes=0, updates=1):
    return SimpleNamespace(
        mean_return_100=mean, episodes=episodes, updates=updates, has_100_returns=episodes >= 100
    )


def target(*returns, checks_by_clock=True):
    """A target of 10 for evaluations with these means, and the attempts made."""
    attempts, left = [], list(returns)

    def play(attempt, seconds):
        attempts.append(attempt)
        returns = np.full(20, left.pop(0))
        return lambda: returns

    return Target(10.0, 20, checks_by_clock, play), attempts


def after_its_first_update(goal):
    """The first check is due half a second later."""
    assert not goal.is_reached(telemetry(), 0.0, None)
    return goal


def test_training_episodes_at_the_target_are_confirmed_by_fresh_ones():
    goal, attempts = target(9.0, 12.0, checks_by_clock=False)
    assert not goal.is_reached(telemetry(10.0, 150), 1.0, None)
    assert not goal.is_reached(telemetry(10.0, 249), 1.0, None)  # 100 more episodes are awaited
    assert goal.is_reached(telemetry(10.0, 250), 1.0, None)
    assert attempts == [0, 0]


def test_a_check_counts_when_a_second_one_agrees():
    goal, attempts = target(11.0, 9.0, 11.0, 12.0)
    after_its_first_update(goal)
    assert not goal.is_reached(telemetry(-50.0, 30), 3.0, None)
    assert attempts == [0, 1]
    assert not goal.is_reached(telemetry(-50.0, 31), 3.4, None)  # too soon for another check
    assert goal.is_reached(telemetry(-50.0, 40), 60.0, None)


def test_checks_take_a_fifth_of_the_time():
    attempts = []

    def play(attempt, seconds):
        attempts.append(attempt)
        time.sleep(0.2)
        return lambda: np.full(20, 9.0)

    goal = after_its_first_update(Target(10.0, 20, True, play))
    for elapsed in (3.0, 3.9):  # one check takes 0.2 s, so the next is due after a second
        assert not goal.is_reached(telemetry(), elapsed, None)
    assert attempts == [0]
    assert not goal.is_reached(telemetry(), 30.0, None)
    assert attempts == [0, 0]


def test_there_is_no_check_before_the_first_update_or_on_the_serial_backend():
    goal, attempts = target(11.0, 11.0)
    serial, others = target(11.0, 11.0, checks_by_clock=False)
    for updates, elapsed in ((0, 60.0), (1, 60.1), (2, 60.5)):
        assert not goal.is_reached(telemetry(updates=updates), elapsed, None)
        assert not serial.is_reached(telemetry(updates=updates), elapsed, None)
    assert attempts == others == []
    assert goal.is_reached(telemetry(updates=3), 60.7, None)


@pytest.mark.parametrize(
    ("seconds_left", "expected"), [(600.0, [4.0, 8.0, 16.0, 600.0]), (1.5, [1.5, 1.5, 1.5])]
)
def test_checks_whose_episodes_do_not_end_get_longer_within_the_limit(seconds_left, expected):
    allowed = []

    def play(attempt, seconds):
        allowed.append(seconds)
        return lambda: np.full(20 if seconds >= 16.0 else 5, 12.0)

    goal = after_its_first_update(Target(10.0, 20, True, play))
    reached = [goal.is_reached(telemetry(), at, seconds_left) for at in (3.0, 30.0, 60.0)]
    assert reached == [False, False, seconds_left == 600.0]
    assert allowed == expected


class Sleeping(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def make_sleeping():
    return Sleeping(gymnasium.make("CartPole-v1"))


def test_slow_evaluations_stop_no_metrics_and_delay_no_end(tmp_path):
    run = tmp_path / "run"
    options = {"num_actors": 1, "envs_per_actor": 1, "trajectory_steps": 4, "run_dir": str(run)}
    began, limit = time.monotonic(), 10.0
    result = veldt.train("impala", make_sleeping, target_return=475.0, max_seconds=limit, **options)
    assert time.monotonic() - began < limit + 5.0
    assert result.stopped_by == "seconds"
    times = [row["time"] for row in metric_rows(run)]
    assert max(np.diff(times[:-1])) < 2.5  # a check takes 4 s or more
    assert (result.evaluation_episodes or 0) < 20 or result.evaluation_env_steps is not None


@pytest.mark.parametrize(("every", "steps"), [(512, 2_048), ("0.05s", 40_000)])
def test_evaluations_during_a_run_make_a_curve(tmp_path, every, steps, capsys):
    given = {"backend": "serial", "num_actors": 1, "evaluation_episodes": 2, "quiet": False}
    given |= {"total_env_steps": steps, "run_dir": tmp_path / "run", "evaluate_every": every}
    result = veldt.train("a2c", "CartPole-v1", **given)
    ages = [entry["env_steps"] for entry in result.evaluations]
    assert ages == sorted(set(ages))
    assert ages[-1] == result.env_steps
    if every == 512:
        assert (ages[0], [age // 512 for age in ages]) == (512, [1, 2, 3, 4])
    assert len(ages) > 2
    rows = [row for row in metric_rows(tmp_path / "run") if EVALUATION in row]
    assert rows[-1][EVALUATION] == result.evaluations[-1]["return"] == result.evaluation_return
    assert f"evaluation after {ages[0]:,} env steps:" in capsys.readouterr().out
    [events] = (tmp_path / "run" / "tensorboard").iterdir()
    assert EVALUATION.encode() in events.read_bytes()
    more = {"total_env_steps": steps + 1_000, "evaluate_every": 500}
    resumed = veldt.resume(tmp_path / "run", **more)
    again = [entry["env_steps"] for entry in resumed.evaluations]
    assert again[: len(ages)] == ages
    assert again == sorted(set(again))
    assert again[-1] >= steps + 1_000


def test_training_is_the_same_with_and_without_a_curve(tmp_path):
    given = {"backend": "serial", "num_actors": 1, "evaluation_episodes": 1}
    runs = [
        veldt.train("a2c", "CartPole-v1", total_env_steps=1_000, evaluate_every=every, **given)
        for every in (None, 300)
    ]
    assert runs[0].parameters_sha256 == runs[1].parameters_sha256
