# SPDX-License-Identifier: Apache-2.0
"""Environments that sleep and straggle: what they answer, how long they take, what they refuse."""

import time

import numpy as np
import pytest

from veldt.environments import EnvironmentFactory
from veldt.environments.delays import Straggling, delay_of
from veldt.errors import ConfigurationError


def rewards_and_seconds(name, steps=40, num_envs=4, **settings):
    environment = EnvironmentFactory(name, **settings).make(num_envs, seed=3)
    environment.reset()
    random = np.random.default_rng(0)
    began, rows = time.perf_counter(), []
    for _ in range(steps):
        environment.step(environment.random_actions(random))
        rows.append(environment.observations["observation"].copy())
    seconds = time.perf_counter() - began
    environment.close()
    return np.array(rows), seconds


def test_a_sleeping_environment_answers_like_its_base_and_takes_its_time():
    plain, quick = rewards_and_seconds("CartPole-v1")
    slept, slow = rewards_and_seconds("veldt:sleeping?step_ms=5")
    np.testing.assert_array_equal(plain, slept)
    assert quick < 0.1 < 0.2 <= slow


def test_it_sleeps_also_in_steps_of_two_halves():
    slept, slow = rewards_and_seconds("veldt:sleeping?step_ms=5", vectorization="subprocess")
    assert slept.shape[0] == 40
    assert slow >= 0.2


@pytest.mark.parametrize(("num_envs", "share"), [(1, 0.1), (8, 1 - 0.9**8)])
def test_stragglers_come_with_their_probability(num_envs, share):
    delay, random = Straggling(probability=0.1, step_ms=1.0, straggle_ms=20.0), np.random
    seconds = [delay.longest_seconds(num_envs, random.default_rng([1, n])) for n in range(4000)]
    assert set(seconds) == {0.001, 0.021}
    assert np.mean(np.array(seconds) > 0.01) == pytest.approx(share, abs=0.025)


def test_stragglers_follow_from_the_seed():
    names = ("veldt:straggling?probability=0.2,straggle_ms=4",) * 2
    first, second = (rewards_and_seconds(name)[1] for name in names)
    assert first == pytest.approx(second, rel=0.25)


def test_any_environment_can_be_slowed_down():
    assert delay_of("veldt:sleeping?base=Acrobot-v1&step_ms=0.5").base == "Acrobot-v1"
    spec = EnvironmentFactory("veldt:sleeping?base=veldt/Memory-v0,step_ms=0").spec()
    assert spec.id.startswith("veldt:sleeping")
    assert spec.observation[0].shape == (2,)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("veldt:sleepin?step_ms=1", "did you mean sleeping"),
        ("veldt:sleeping?step=1", "did you mean step_ms"),
        ("veldt:sleeping?step_ms=soon", "use a number"),
        ("veldt:sleeping?step_ms=-1", "use 0 to 60,000"),
        ("veldt:sleeping?step_ms=nan", "step_ms"),
        ("veldt:straggling?probability=1.5", "use 0 to 1"),
        ("veldt:sleeping?base=CartPol-v1", "did you mean CartPole-v1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(name, remedy):
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        EnvironmentFactory(name).spec()
    assert "\n" not in str(caught.value)
