# SPDX-License-Identifier: Apache-2.0
"""IMPALA (Espeholt et al., 2018).

    actor x N --trajectories--> queue --batch--> learner
       ^                                            |
       +----------------- weights ------------------+

New since A3C: trajectories travel instead of gradients, so acting and learning are decoupled and
V-trace corrects for the difference between the policy that acted and the one that learns.
One datum: actor -> queue -> learner.
Lag: the time a trajectory takes to be written plus its wait in the queue, in learner updates.
Deviation: an actor steps many environments per forward pass, so a trajectory is [T+1, E] wide and a
batch is a few of them; the paper's batch of 32 is `batch_trajectories` x E columns here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policy import LocalPolicyConfig
from veldt.settings import OptimizerSettings
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(ActorCriticSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the paper's constants."""

    learning_rate: float = 5e-3
    max_grad_norm: float = 2.0
    trace_lambda: float = 0.95
    normalize_returns: bool = True
    trajectory_steps: int = 10
    """Environment steps per trajectory."""
    batch_trajectories: int = 1
    """Trajectories joined into one batch."""
    queue_trajectories: int = 2
    """Trajectories per actor that may be under way to the learner."""


PRESETS = {
    "control": Config(),
    "atari": Config(
        trajectory_steps=20,
        trace_lambda=1.0,
        normalize_returns=False,
        reduction="sum",
        optimizer="rmsprop",
        learning_rate=6e-4,
        decay_learning_rate=True,
        optimizer_epsilon=0.01,
        max_grad_norm=40.0,
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    make_network = problem.make_network(
        "policy_value", normalize_returns=config.normalize_returns
    )
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor
    )
    initial = problem.initial_weights(make_network)

    topology = Topology("impala", make_network)
    num_slots = max(config.queue_trajectories * problem.num_actors, config.batch_trajectories + 1)
    trajectories = topology.queue("trajectories", layout, num_slots)
    weights = topology.board("weights", initial.vector, version=initial.version)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            sink=trajectories.sink,
            policy=LocalPolicyConfig(make_network),
            policy_port=weights.source(),
            gamma=config.gamma,
        )
    topology.add(
        "learner",
        Learner,
        source=trajectories.source(config.batch_trajectories),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(ActorCritic, config=config),
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
        device=problem.device,
        torch_threads=problem.learner_threads,
    )
    return topology

