# SPDX-License-Identifier: Apache-2.0
"""Atari on ale-py's vector environment: preprocessing, resets, lost lives, groups and rules."""

import json

import numpy as np
import pytest

import veldt
from veldt.cli.main import main
from veldt.environments import EnvironmentFactory
from veldt.environments.atari import atari_rules
from veldt.types import ObservationLeaf

pytest.importorskip("ale_py")

TIME_LIMIT = 12


def test_standard_preprocessing():
    spec = EnvironmentFactory("ALE/Pong-v5").spec()
    assert spec.observation == (ObservationLeaf("observation", (4, 84, 84), "uint8", "image"),)
    assert spec.action.sizes == (6,)
    assert spec.frames_per_step == 4
    assert not spec.same_step_reset
    assert EnvironmentFactory("ALE/Pong-v5", frame_stack=2).spec().observation[0].shape[0] == 2


def test_episodes_follow_from_their_seeds():
    """Time-limited episodes: each environment its own, and the same in another run."""

    def played() -> np.ndarray:
        environment = EnvironmentFactory("ALE/Pong-v5", time_limit=TIME_LIMIT).make(2, seed=7)
        environment.reset()
        seen, truncated = [], []
        for number in range(3 * TIME_LIMIT):
            seen.append(environment.observations["observation"].copy())
            truncated.append(environment.step(np.full(2, number % 6)).truncated.all())
        environment.close()
        assert np.flatnonzero(truncated).tolist() == [TIME_LIMIT - 1, 2 * TIME_LIMIT]
        return np.stack(seen)

    first = played()
    assert (first[:, 0] != first[:, 1]).any()
    np.testing.assert_array_equal(first, played())


def test_a_lost_life_ends_the_episode_but_not_the_game():
    factory = EnvironmentFactory("ALE/Breakout-v5", {"episodic_life": True})
    whole = EnvironmentFactory("ALE/Breakout-v5")
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


def test_render_shows_the_newest_frame():
    environment = EnvironmentFactory("ALE/Pong-v5").make(1, seed=0, render=True)
    environment.reset()
    assert environment.render().shape == (84, 84, 3)
    environment.close()


def test_groups_alternate_on_one_thread_only():
    assert EnvironmentFactory("ALE/Pong-v5", {"num_threads": 2}).make_groups(2, 2, seed=5) is None


def test_rules_are_those_of_the_environment_that_is_played():
    rules = atari_rules(EnvironmentFactory("ALE/Pong-v5", reward_clip=1.0))
    assert (rules.game, rules.sticky_actions, rules.frames_per_step) == ("pong", 0.25, 4)
    assert not rules.life_loss_ends
    assert "sticky actions 0.25" in rules.text()
    assert "rewards clipped to 1" in rules.text()
    paper = {"repeat_action_probability": 0.0, "episodic_life": True, "frameskip": 2}
    rules = atari_rules(EnvironmentFactory("ALE/Breakout-v5", paper, time_limit=100))
    assert (rules.sticky_actions, rules.life_loss_ends, rules.max_frames) == (0.0, True, 200)
    assert atari_rules(EnvironmentFactory("CartPole-v1")) is None


def test_scores_are_normalized_between_random_and_human():
    rules = atari_rules(EnvironmentFactory("ALE/Pong-v5"))
    assert [rules.human_normalized(score) for score in (-20.7, 14.6)] == [0.0, 1.0]
    assert atari_rules(EnvironmentFactory("ALE/Tetris-v5")).human_normalized(1.0) is None


@pytest.mark.slow
def test_evaluate_reports_all_of_it(tmp_path, capsys):
    veldt.train(
        "impala",
        env="ALE/Freeway-v5",
        backend="serial",
        total_env_steps=64,
        num_actors=1,
        envs_per_actor=2,
        wrappers={"time_limit": 40},
        evaluation_episodes=0,
        network="mlp",
        run_dir=str(tmp_path / "run"),
        quiet=True,
    )
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["frames"] == 4 * found["env_steps"]
    assert found["human_normalized"] == pytest.approx(found["mean"] / 29.6)
    assert "rewards clipped to 1" in found["rules"]
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert "human-normalised" in capsys.readouterr().out
