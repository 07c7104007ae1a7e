# SPDX-License-Identifier: Apache-2.0
"""DQN, Gorila and Ape-X: published constants."""

import pytest

from veldt.architectures import load
from veldt.options import RunOptions
from veldt.options.fields import flat_keys
from veldt.run.plan import make_plan


def published(architecture: str, **constants) -> None:
    preset = flat_keys(load(architecture).presets["paper"])
    assert {name: preset[name] for name in constants} == pytest.approx(constants)


def test_dqn_has_the_published_constants():
    published(
        "dqn", batch_size=32, replay_transitions=1e6, min_replay_transitions=50_000, gamma=0.99,
        env_steps_per_update=4, epsilon_start=1.0, epsilon_end=0.1, epsilon_env_steps=1e6,
        learning_rate=2.5e-4, rmsprop_decay=0.95, rmsprop_centered=True,
        optimizer_epsilon=0.01 / 32**2, n_step=1, double=False,
    )  # fmt: skip
    preset = flat_keys(load("dqn").presets["paper"])
    # Every 10,000 agent steps.
    assert preset["target_period_updates"] * preset["env_steps_per_update"] == 10_000
    assert (preset["optimizer"], preset["td_loss"]) == ("rmsprop", "huber")


def test_gorila_has_the_published_constants():
    published(
        "gorila", replay_transitions=1e6, epsilon_start=1.0, epsilon_end=0.1, gamma=0.99,
        target_period_updates=60_000, batch_size=32,
    )  # fmt: skip
    assert flat_keys(load("gorila").presets["paper"])["optimizer"] == "adagrad"


def test_apex_has_the_published_constants():
    published(
        "apex", n_step=3, gamma=0.99, priority_exponent=0.6, importance_exponent=0.4,
        batch_size=512, min_replay_transitions=50_000, target_period_updates=2_500,
        max_grad_norm=40.0, learning_rate=2.5e-4 / 4, rmsprop_decay=0.95, rmsprop_centered=True,
        optimizer_epsilon=1.5e-7, momentum=0.0, epsilon_base=0.4, epsilon_alpha=7.0,
        replay_transitions=2e6, trim_period_updates=100, prefetch_batches=16, double=True,
        dueling=True, actor_priorities=True,
    )  # fmt: skip
    preset = flat_keys(load("apex").presets["paper"])
    assert preset["env_steps_per_update"] is None, "actors and learner run freely"
    assert preset["refresh_env_steps"] * 4 == 400, "frames"
    assert preset["noise_sigma"] == 0.3
    assert preset["action_gradient_clip"] == 1.0


def test_apex_dpg_has_the_published_constants():
    options = RunOptions(env="Pendulum-v1", backend="serial", preset="paper")
    preset = flat_keys(make_plan("apex", options, {}).config)
    constants = {
        "batch_size": 256, "target_period_updates": 100, "replay_transitions": 1e6,
        "trim_period_updates": 0, "priority_exponent": 0.6, "importance_exponent": 0.4,
        "noise_sigma": 0.3, "action_gradient_clip": 1.0, "n_step": 5,
    }  # fmt: skip
    assert {name: preset[name] for name in constants} == pytest.approx(constants)


def plan(architecture: str, env: str = "CartPole-v1", **own):
    return make_plan(architecture, RunOptions(env=env, backend="serial"), own)


def test_apexs_preset_follows_the_action_space():
    assert plan("apex", "Pendulum-v1").config.loss.gamma == 0.95
    assert plan("apex").config.loss.gamma == 0.99
