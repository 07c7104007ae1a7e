# SPDX-License-Identifier: Apache-2.0
"""What an Atari score rests on is told with it."""

from __future__ import annotations

import json

import pytest

import veldt
from veldt.cli.main import main
from veldt.environments import EnvironmentFactory
from veldt.environments.atari import atari_rules

pytest.importorskip("ale_py")


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


@pytest.mark.parametrize(("score", "expected"), [(-20.7, 0.0), (14.6, 1.0), (-3.05, 0.5)])
def test_a_score_between_random_and_human(score, expected):
    rules = atari_rules(EnvironmentFactory("ALE/Pong-v5"))
    assert rules.human_normalized(score) == pytest.approx(expected)


def test_a_game_without_a_human_has_no_such_score():
    rules = atari_rules(EnvironmentFactory("ALE/Tetris-v5"))
    assert rules.human_normalized(3.0) is None


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
