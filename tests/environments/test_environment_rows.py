# SPDX-License-Identifier: Apache-2.0
"""Every row is right, for each adapter and autoreset mode."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from counting_environments import (
    DEFAULT_LENGTHS,
    CountingEnvironment,
    CountingVectorEnvironment,
    MaskedDictEnvironment,
    same_step_vector,
)
from gymnasium.vector import AutoresetMode

from veldt.environments import EnvironmentFactory, VectorEnvironment

NUM_ENVS, SEED, NUM_ROWS = 3, 5, 40
ADAPTERS = [
    ("tests/Counting-v0", "auto"),
    ("tests/Counting-v0", "in_process"),
    ("counting_environments:CountingVectorEnvironment", "auto"),
    (partial(CountingVectorEnvironment, autoreset_mode=AutoresetMode.SAME_STEP), "auto"),
    (same_step_vector(CountingEnvironment), "auto"),
    (CountingEnvironment, "auto"),
]


@dataclass
class Row:
    """What one environment must show in one row."""

    observation: tuple[int, int, int]
    first: bool
    ignored: bool = False
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: tuple[int, int, int] | None = None
    episode: tuple[float, int] | None = None


def expected_rows(
    identity: int, same_step: bool, lengths: tuple[int, ...] = DEFAULT_LENGTHS
) -> Iterator[Row]:
    """One environment alone, row by row, as the design describes it."""
    episode = 0
    while True:
        length = lengths[(episode + identity) % len(lengths)]
        for count in range(1, length + 1):
            row = Row((episode, count - 1, identity), first=count == 1, reward=float(count))
            if count == length:
                row.terminated, row.truncated = episode % 2 == 0, episode % 2 == 1
                row.episode = (length * (length + 1) / 2, length)
                row.final = (episode, count, identity) if same_step else None
            yield row
        if not same_step:
            yield Row((episode, length, identity), first=False, ignored=True)
        episode += 1


def assert_rows_right(environment: VectorEnvironment, sources: list[Iterator[Row]]) -> None:
    random = np.random.default_rng(0)
    for _ in range(NUM_ROWS):
        rows = [next(source) for source in sources]
        observed = environment.observations["observation"]
        np.testing.assert_array_equal(observed, [row.observation for row in rows])
        np.testing.assert_array_equal(environment.first, [row.first for row in rows])
        step = environment.step(environment.random_actions(random))
        for name in ("ignored", "reward", "terminated", "truncated"):
            expected = [getattr(row, name) for row in rows]
            np.testing.assert_array_equal(getattr(step, name), expected, err_msg=name)
        episodes = [row.episode for row in rows if row.episode]
        assert list(zip(step.episode_returns, step.episode_lengths, strict=True)) == episodes
        assert step.env_steps == sum(not row.ignored for row in rows)
        assert (step.final_observations is not None) == environment.spec.same_step_reset
        for index, row in enumerate(rows):
            if row.final is not None:
                assert tuple(step.final_observations["final_observation"][index]) == row.final
        assert step.reward.dtype == np.float32
        assert step.terminated.dtype == step.truncated.dtype == step.ignored.dtype == bool


@pytest.mark.parametrize(("env", "vectorization"), ADAPTERS)
def test_no_row_is_wrong_missing_or_doubled(env, vectorization):
    factory = EnvironmentFactory(env, vectorization=vectorization)
    same_step = factory.spec().same_step_reset
    assert same_step == (ADAPTERS.index((env, vectorization)) in (3, 4))
    environment = factory.make(NUM_ENVS, SEED)
    try:
        environment.reset()
        sources = [expected_rows(SEED + index, same_step) for index in range(NUM_ENVS)]
        assert_rows_right(environment, sources)
    finally:
        environment.close()


class Untidy(CountingVectorEnvironment):
    """Leaves rubbish in its reset rows."""

    def step(self, actions):
        late = self._over.copy()
        observation, reward, terminated, truncated, info = super().step(actions)
        return observation, np.where(late, 99.0, reward), terminated | late, truncated | late, info


def test_rubbish_in_reset_rows_is_not_passed_on():
    environment = EnvironmentFactory(Untidy).make(NUM_ENVS, SEED)
    environment.reset()
    assert_rows_right(environment, [expected_rows(SEED + index, False) for index in range(3)])


def test_reset_in_the_middle_begins_new_episodes_and_forgets_the_old_ones():
    environment = EnvironmentFactory(CountingEnvironment, {"lengths": (3,)}).make(1, seed=0)
    environment.reset()
    environment.step(np.zeros(1, np.int64))
    environment.reset()
    assert environment.first.all()
    np.testing.assert_array_equal(environment.observations["observation"], [[1, 0, 0]])
    for _ in range(3):
        step = environment.step(np.zeros(1, np.int64))
    assert step.episode_lengths.tolist() == [3]
    assert step.episode_returns.tolist() == [6.0]


@pytest.mark.parametrize("vectorization", ["in_process", "auto"])
def test_time_limit_truncates_with_the_true_last_observation(vectorization):
    factory = EnvironmentFactory("CartPole-v1", time_limit=4, vectorization=vectorization)
    environment = factory.make(2, seed=1)
    is_native = type(environment._env).__name__ == "CartPoleVectorEnv"
    assert is_native == (vectorization == "auto")
    environment.reset()
    seen = []
    for _ in range(4):
        step = environment.step(np.zeros(2, np.int64))
        seen.append(environment.observations["observation"].copy())
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.episode_lengths.tolist() == [4, 4]
    # Pushed left at every step, the cart's speed falls steadily; a first observation would not.
    assert (seen[3][:, 1] < seen[2][:, 1] - 0.1).all()


def test_reward_clip_changes_what_is_learned_from_but_not_what_is_reported():
    options = {"lengths": (4,)}
    environment = EnvironmentFactory(CountingEnvironment, options, reward_clip=1.5).make(1, seed=0)
    environment.reset()
    rewards = []
    for _ in range(4):
        step = environment.step(np.zeros(1, np.int64))
        rewards.append(float(step.reward[0]))
    assert rewards == [1.0, 1.5, 1.5, 1.5]
    assert step.episode_returns.tolist() == [10.0]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", MaskedDictEnvironment])
def test_same_seed_same_observations_and_another_seed_others(env):
    def run(seed):
        environment = EnvironmentFactory(env, time_limit=9).make(3, seed)
        environment.reset()
        random, seen = np.random.default_rng(0), []
        for _ in range(30):
            for array in environment.observations.values():
                seen.append(array.astype(np.float64).ravel())
            environment.step(environment.random_actions(random))
        return np.concatenate(seen)

    first, second, other = run(2**62 + 7), run(2**62 + 7), run(3)
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_reset_rows_and_time_limits_of_envpool():
    pytest.importorskip("envpool")
    environment = EnvironmentFactory("envpool:CartPole-v1", time_limit=5).make(4, seed=1)
    environment.reset()
    assert environment.first.all()
    ended = np.zeros(4, dtype=bool)
    for _ in range(30):
        step = environment.step(environment.random_actions(np.random.default_rng(0)))
        np.testing.assert_array_equal(step.ignored, ended)
        np.testing.assert_array_equal(environment.first, ended)
        assert not step.reward[ended].any()
        assert (step.episode_lengths == 5).all()
        ended = step.terminated | step.truncated
    environment.close()
