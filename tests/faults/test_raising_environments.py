# SPDX-License-Identifier: Apache-2.0
"""One environment that fails is rebuilt alone; one that always fails stops the run by name."""

import faulty_environments as faulty
import gymnasium
import numpy as np
import pytest
from counting_environments import MaskedDictEnvironment

import veldt
from veldt.backends.base import NodeFailure
from veldt.environments import EnvironmentFactory
from veldt.environments.copies import EnvironmentFailure

SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}


def vector(make, num_envs=4, **settings):
    faulty.Faulty.made = 0
    environment = EnvironmentFactory(make, **settings)
    environment.spec()
    faulty.Faulty.made = 0
    made = environment.make(num_envs, seed=1)
    made.reset()
    return made


def test_only_the_one_that_raises_loses_its_episode():
    """Copy 0 raises in step 9 of its first episode; the environment that takes over is sound."""
    environment = vector(faulty.rarely_raising)
    actions = np.zeros(4, np.int64)
    aborted, lengths, rows = 0, [], []
    for _ in range(44):
        step = environment.step(actions)
        aborted += step.aborted_episodes
        lengths += step.episode_lengths.tolist()
        rows.append((step.reward.copy(), step.truncated.copy(), step.terminated.copy()))
    assert aborted == 1
    assert set(lengths) == {10}, "an episode that was cut short counts as no result"
    reward, truncated, terminated = rows[8]
    assert reward.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert truncated.tolist() == [True, False, False, False]
    assert not terminated.any()
    assert rows[9][2].tolist() == [False, True, True, True], "the others end when they always do"


@pytest.mark.parametrize("fault", ["nan_reward", "inf_observation"])
def test_numbers_that_are_not_finite_count_as_a_failure(fault):
    environment = vector(lambda: faulty.Faulty(fault, at=9, nth=4))
    for _ in range(9):
        step = environment.step(np.zeros(4, np.int64))
    assert step.aborted_episodes == 1
    assert environment.bad_rows == 0
    assert environment.observations["observation"][0].tolist() == [0.0, 8.0], "where last well"


def test_one_that_always_raises_is_named_with_what_it_raised():
    environment = vector(faulty.raising)
    with pytest.raises(EnvironmentFailure, match=r"raising.*copy 0.*10 times.*joint is stuck"):
        [environment.step(np.zeros(4, np.int64)) for _ in range(100)]


def test_a_mistake_of_the_caller_is_never_taken_for_a_failing_environment():
    environment = EnvironmentFactory(MaskedDictEnvironment).make(2, seed=0)
    environment.reset()
    with pytest.raises(gymnasium.error.InvalidAction, match="masked"):
        environment.step(environment.observations["action_mask"].argmin(axis=1))


def test_a_run_goes_on_when_environments_fail_now_and_then(tmp_path):
    faulty.Faulty.made = 0
    result = veldt.train(
        "impala",
        lambda: faulty.Faulty("raise", at=9, nth=3),
        total_env_steps=600,
        run_dir=str(tmp_path),
        **SMALL,
    )
    assert result.stopped_by == "env_steps"
    assert result.aborted_episodes >= 1
    assert result.mean_return_100 == 10.0


def test_bad_numbers_of_a_native_vector_are_never_handed_on(tmp_path):
    result = veldt.train(
        "impala", faulty.NativeNan, total_env_steps=1000, run_dir=str(tmp_path), **SMALL
    )
    assert result.dropped["not_finite"] == 0
    assert 3 <= result.dropped["bad_trajectory"] <= 6
    assert result.updates > 10


def test_a_native_vector_that_is_never_well_ends_the_run_by_name(tmp_path):
    with pytest.raises(NodeFailure, match=r"always_nan.*20 trajectories in a row"):
        veldt.train("impala", faulty.always_nan, run_dir=str(tmp_path), **SMALL)
