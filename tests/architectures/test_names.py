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


def objective_of(architecture, env="CartPole-v1"):
    options = RunOptions(env=env, backend="serial", device="cpu")
    topology = make_plan(architecture, options, {}).topology
    found = [n.role.objective for n in topology.nodes if isinstance(n.role, Learner)]
    assert len({type(each) for each in found}) == 1
    return found[0]


@pytest.mark.parametrize(("architecture", "env"), LOSSES, ids="-".join)
def test_the_loss_is_that_of_the_name(architecture, env):
    assert type(objective_of(architecture, env)) is LOSSES[architecture, env]


def test_lag_is_corrected_by_v_trace():
    for architecture in ("impala", "seed_rl"):
        assert objective_of(architecture).options.correction == "vtrace"


def test_a2c_takes_one_step_per_batch_and_ppo_several():
    for architecture, has_passes in (("a2c", False), ("ppo", True)):
        passes = getattr(objective_of(architecture).options, "ppo", None)
        assert bool(passes and passes.has_passes) is has_passes
