# SPDX-License-Identifier: Apache-2.0
"""DQN, Gorila and Ape-X as they are wired: published constants, ratios, determinism, backends."""

from __future__ import annotations

import pytest

import veldt
from veldt.architectures import load
from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.options.fields import flat
from veldt.run.plan import make_plan

SMALL = {"min_replay_transitions": 200, "batch_size": 32, "evaluation_episodes": 0}
VARIANTS = {
    "dqn": ("dqn", "CartPole-v1", {}),
    "gorila-bundled-1": ("gorila", "CartPole-v1", {"num_shards": 1, "num_actors": 2}),
    "gorila-bundled-2": ("gorila", "CartPole-v1", {"num_shards": 2, "num_actors": 2}),
    "gorila-global-1": ("gorila", "CartPole-v1", {"replay": "global", "num_shards": 1}),
    "gorila-global-2": ("gorila", "CartPole-v1", {"replay": "global", "num_shards": 2}),
    "apex-dqn": ("apex", "CartPole-v1", {"num_actors": 2}),
    "apex-dpg": ("apex", "Pendulum-v1", {"num_actors": 2}),
}


def run(variant: str, run_dir, **options):
    architecture, env, own = VARIANTS[variant]
    options = {**SMALL, **own, "total_env_steps": 1500, "envs_per_actor": 8, **options}
    return veldt.train(architecture, env=env, run_dir=str(run_dir), **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_seed_gives_the_same_bits(variant, tmp_path):
    first, second, other = (
        run(variant, tmp_path / str(i), backend="serial", seed=seed)
        for i, seed in enumerate((3, 3, 4))
    )
    assert first.updates == second.updates > 10
    assert first.parameters_sha256 == second.parameters_sha256
    assert first.parameters_sha256 != other.parameters_sha256


@pytest.mark.parametrize("variant", ["dqn", "gorila-bundled-2", "gorila-global-2", "apex-dqn"])
def test_learns_on_processes(variant, tmp_path):
    result = run(variant, tmp_path, backend="process", total_env_steps=4000)
    assert result.stopped_by == "env_steps"
    assert result.updates > 10
    assert result.restarts == 0
    assert result.dropped.get("not_finite", 0) == 0


@pytest.mark.parametrize("variant", ["dqn", "gorila-bundled-1", "gorila-global-2", "apex-dqn"])
def test_env_steps_per_update_are_kept(variant, tmp_path):
    result = run(variant, tmp_path, backend="serial", total_env_steps=6000, env_steps_per_update=8)
    replays = 2 if "bundled" in variant else 1
    expected = (result.env_steps - replays * SMALL["min_replay_transitions"]) / 8
    assert result.updates == pytest.approx(expected, rel=0.15)


def published(architecture: str, **constants) -> None:
    preset = flat(load(architecture).presets["paper"])
    assert {name: preset[name] for name in constants} == pytest.approx(constants)


def test_dqn_has_the_published_constants():
    published(
        "dqn", batch_size=32, replay_transitions=1e6, min_replay_transitions=50_000, gamma=0.99,
        env_steps_per_update=4, epsilon_start=1.0, epsilon_end=0.1, epsilon_env_steps=1e6,
        learning_rate=2.5e-4, rms_decay=0.95, rms_centered=True, optimizer_epsilon=0.01 / 32**2,
        n_step=1, double=False,
    )  # fmt: skip
    preset = flat(load("dqn").presets["paper"])
    # Every 10,000 agent steps.
    assert preset["target_period_updates"] * preset["env_steps_per_update"] == 10_000
    assert (preset["optimizer"], preset["td_loss"]) == ("rmsprop", "clipped")


def test_gorila_has_the_published_constants():
    published(
        "gorila", replay_transitions=1e6, epsilon_start=1.0, epsilon_end=0.1, gamma=0.99,
        target_period_updates=60_000, batch_size=32,
    )  # fmt: skip
    assert flat(load("gorila").presets["paper"])["optimizer"] == "adagrad"


def test_apex_has_the_published_constants():
    published(
        "apex", n_step=3, gamma=0.99, priority_exponent=0.6, importance_exponent=0.4,
        batch_size=512, min_replay_transitions=50_000, target_period_updates=2_500,
        max_grad_norm=40.0, learning_rate=2.5e-4 / 4, rms_decay=0.95, rms_centered=True,
        optimizer_epsilon=1.5e-7, momentum=0.0, epsilon_base=0.4, epsilon_alpha=7.0,
        replay_transitions=2e6, trim_period_updates=100, prefetch_batches=16, double=True,
        dueling=True, actor_priorities=True,
    )  # fmt: skip
    preset = flat(load("apex").presets["paper"])
    assert preset["env_steps_per_update"] is None, "actors and learner run freely"
    assert preset["refresh_env_steps"] * 4 == 400, "frames"
    assert preset["noise_sigma"] == 0.3
    assert preset["action_gradient_clip"] == 1.0


def test_apex_dpg_has_the_published_constants():
    options = RunOptions(env="Pendulum-v1", backend="serial", preset="paper")
    preset = flat(make_plan("apex", options, {}).config)
    constants = {
        "batch_size": 256, "target_period_updates": 100, "replay_transitions": 1e6,
        "trim_period_updates": 0, "priority_exponent": 0.6, "importance_exponent": 0.4,
        "noise_sigma": 0.3, "action_gradient_clip": 1.0, "n_step": 5,
    }  # fmt: skip
    assert {name: preset[name] for name in constants} == pytest.approx(constants)


def plan(architecture: str, env: str = "CartPole-v1", **own):
    return make_plan(architecture, RunOptions(env=env, backend="serial"), own)


def test_gorila_wires_shards_bundles_and_a_global_replay():
    kinds = lambda plan: [node.kind for node in plan.topology.nodes]  # noqa: E731
    bundled = plan("gorila", num_shards=3)
    assert kinds(bundled).count("parameter_server") == 3
    assert [len(group.nodes) for group in bundled.topology.groups()] == [1, 1, 1, 3, 3]
    separate = plan("gorila", replay="global", num_learners=3, num_shards=1)
    assert kinds(separate).count("replay") == 1
    assert kinds(separate).count("learner") == 3
    assert all(len(group.nodes) == 1 for group in separate.topology.groups())
    for each in (bundled, separate):
        gradients = [q for q in each.topology.queues if q.spec.name.startswith("gradients")]
        sent = sum(queue.spec.layout["gradient"].shape[0] for queue in gradients)
        assert sent == each.topology.num_weights == sum(b.spec.size for b in each.topology.boards)
        learners = [node for node in each.topology.nodes if node.kind == "learner"]
        sinks = [
            end.channel.name for node in learners for _, end in node.ends() if end.side == "sink"
        ]
        assert all(name.startswith("gradients") for name in sinks), "gradients are all they send"


def test_apexs_preset_follows_the_action_space():
    assert plan("apex", "Pendulum-v1").config.loss.gamma == 0.95
    assert plan("apex").config.loss.gamma == 0.99


@pytest.mark.parametrize(
    ("architecture", "env", "own", "message"),
    [
        ("dqn", "Pendulum-v1", {}, "discrete actions"),
        ("apex", "CartPole-v1", {"algorithm": "sac"}, "use sac or td3"),
        ("sac", "CartPole-v1", {}, "box actions"),
        ("td3", "CartPole-v1", {}, "box actions"),
        ("gorila", "CartPole-v1", {"replay": "none"}, "use bundled, global"),
        ("gorila", "CartPole-v1", {"num_shards": 0}, "num_shards"),
        ("gorila", "CartPole-v1", {"max_gradient_age_updates": -1}, "use 0 to "),
        ("dqn", "CartPole-v1", {"replay_transitions": 100}, "two trajectories"),
        ("dqn", "CartPole-v1", {"min_replay_transitions": 60_000}, "raise it"),
        ("apex", "CartPole-v1", {"env_steps_per_update": 0.0}, "use above 0 .*, or none"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_a_remedy(architecture, env, own, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(architecture, env, **own)
