# SPDX-License-Identifier: Apache-2.0
"""Atari on ale-py's vector environment: standard preprocessing, each autoreset mode, lost lives."""

import numpy as np
import pytest

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError

pytest.importorskip("ale_py")

NUM_ENVS, TIME_LIMIT = 2, 12


def test_standard_preprocessing():
    spec = EnvironmentFactory("ALE/Pong-v5").spec()
    leaf = spec.observation[0]
    assert (leaf.name, leaf.shape, leaf.dtype, leaf.kind) == (
        "observation",
        (4, 84, 84),
        "uint8",
        "image",
    )
    assert spec.action.sizes == (6,)
    assert spec.frames_per_step == 4
    assert not spec.same_step_reset
    assert EnvironmentFactory("ALE/Pong-v5", frame_stack=2).spec().observation[0].shape[0] == 2


def episodes(mode: str, options: dict) -> list[list[bytes]]:
    """Per environment, the observations of each time-limited episode, last one included."""
    factory = EnvironmentFactory(
        "ALE/Pong-v5", options, autoreset=mode, time_limit=TIME_LIMIT, reward_clip=1.0
    )
    environment = factory.make(NUM_ENVS, seed=7)
    environment.reset()
    done: list[list[bytes]] = [[] for _ in range(NUM_ENVS)]
    running: list[list[bytes]] = [[] for _ in range(NUM_ENVS)]
    count = np.zeros(NUM_ENVS, dtype=np.int64)
    try:
        while min(len(found) for found in done) < 3:
            for index in range(NUM_ENVS):
                running[index].append(environment.observations["observation"][index].tobytes())
            # The action depends on the position in the episode only, so that modes can be compared.
            count = np.where(environment.first, 0, count + 1)
            step = environment.step((count * 5 + count // 3) % 6)
            for index in np.flatnonzero(step.truncated | step.terminated | step.ignored):
                if mode == "same_step":
                    final = step.final_observations["final_observation"][index]
                    running[index].append(final.tobytes())
                elif not step.ignored[index]:
                    continue
                done[index].append(b"".join(running[index]))
                assert len(running[index]) == TIME_LIMIT + 1
                running[index] = []
    finally:
        environment.close()
    return done


def test_both_autoreset_modes_show_the_same_episodes():
    options = {"repeat_action_probability": 0.0}
    next_step, same_step = episodes("next_step", options), episodes("same_step", options)
    assert [found[:3] for found in next_step] == [found[:3] for found in same_step]
    assert next_step[0][0] != next_step[1][0]
    assert next_step == episodes("next_step", options)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_lost_life_ends_the_episode_but_not_the_game(mode):
    factory = EnvironmentFactory("ALE/Breakout-v5", {"episodic_life": True}, autoreset=mode)
    whole = EnvironmentFactory("ALE/Breakout-v5", autoreset=mode)
    lives, games, env_steps, lengths = 0, 0, 0, []
    environment = factory.make(1, seed=3)
    environment.reset()
    reference = whole.make(1, seed=3)
    reference.reset()
    random = np.random.default_rng(0)
    while games < 2:
        action = random.integers(0, 4, size=1)
        step, truth = environment.step(action), reference.step(action)
        np.testing.assert_array_equal(step.ignored, truth.ignored)
        np.testing.assert_array_equal(step.episode_returns, truth.episode_returns)
        np.testing.assert_array_equal(step.episode_lengths, truth.episode_lengths)
        np.testing.assert_array_equal(
            environment.observations["observation"], reference.observations["observation"]
        )
        lives += int(step.terminated[0])
        env_steps += step.env_steps
        if step.terminated[0] and not truth.terminated[0]:
            assert environment.first[0]
        games += len(step.episode_lengths)
        lengths.extend(step.episode_lengths)
    assert lives == 10
    assert env_steps == sum(lengths)
    environment.close()
    reference.close()


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"vectorization": "in_process"}, "auto"),
        ({"options": {"colour": True}}, "colour"),
    ],
)
def test_refusals(settings, remedy):
    with pytest.raises(ConfigurationError, match=remedy):
        EnvironmentFactory("ALE/Pong-v5", **settings).spec()


def test_render_shows_the_newest_frame():
    environment = EnvironmentFactory("ALE/Pong-v5").make(1, seed=0, render=True)
    environment.reset()
    assert environment.render().shape == (84, 84, 3)
    environment.close()


def test_groups_take_turns_only_on_one_thread():
    assert EnvironmentFactory("ALE/Pong-v5", {"num_threads": 2}).make_groups(2, 2, seed=5) is None
    assert EnvironmentFactory("CartPole-v1").make_groups(2, 2, seed=5) is None
