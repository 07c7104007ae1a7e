# SPDX-License-Identifier: Apache-2.0
"""A name is its algorithm: what each architecture's learners minimise by default."""

import pytest

from veldt.losses.actor_critic import ActorCritic
from veldt.losses.dpg import DPG
from veldt.losses.ppo import PPO
from veldt.losses.pqn import PQN
from veldt.losses.q_learning import QLearning
from veldt.losses.r2d2 import R2D2
from veldt.losses.sac import SAC
from veldt.losses.td3 import TD3
from veldt.options import RunOptions
from veldt.roles.learner import Learner
from veldt.run.plan import make_plan

LOSSES = {
    ("dqn", "CartPole-v1"): QLearning,
    ("gorila", "CartPole-v1"): QLearning,
    ("a3c", "CartPole-v1"): ActorCritic,
    ("a2c", "CartPole-v1"): ActorCritic,
    ("ppo", "CartPole-v1"): PPO,
    ("ppo", "Pendulum-v1"): PPO,
    ("sebulba", "CartPole-v1"): PPO,
    ("areal", "CartPole-v1"): PPO,
    ("pqn", "CartPole-v1"): PQN,
    ("apex", "CartPole-v1"): QLearning,
    ("apex", "Pendulum-v1"): DPG,
    ("sac", "Pendulum-v1"): SAC,
    ("td3", "Pendulum-v1"): TD3,
    ("impala", "CartPole-v1"): ActorCritic,
    ("r2d2", "CartPole-v1"): R2D2,
    ("seed_rl", "CartPole-v1"): ActorCritic,
}


@pytest.mark.parametrize(("architecture", "env"), LOSSES, ids="-".join)
def test_the_loss_is_that_of_the_name(architecture, env):
    options = RunOptions(env=env, backend="serial", device="cpu")
    topology = make_plan(architecture, options, {}).topology
    losses = {type(n.role.objective) for n in topology.nodes if isinstance(n.role, Learner)}
    assert losses == {LOSSES[architecture, env]}


@pytest.mark.parametrize("architecture", ["impala", "seed_rl"])
def test_lag_is_corrected_by_v_trace(architecture):
    options = RunOptions(env="CartPole-v1", backend="serial", device="cpu")
    topology = make_plan(architecture, options, {}).topology
    [learner] = [n.role for n in topology.nodes if isinstance(n.role, Learner)]
    assert learner.objective.options.correction == "vtrace"


def test_a2c_takes_one_step_per_batch_and_ppo_several():
    options = RunOptions(env="CartPole-v1", backend="serial", device="cpu")
    for architecture, has_passes in (("a2c", False), ("ppo", True)):
        topology = make_plan(architecture, options, {}).topology
        [learner] = [n.role for n in topology.nodes if isinstance(n.role, Learner)]
        passes = getattr(learner.objective.options, "ppo", None)
        assert bool(passes and passes.has_passes) is has_passes
