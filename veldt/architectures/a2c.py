# SPDX-License-Identifier: Apache-2.0
"""A2C: A3C made synchronous (Mnih et al., 2016; the batched form is folklore since 2017).

    actor x N --trajectories--> queue --one of each--> learner
       ^                                                  |
       +------ weights: no trajectory starts without -----+

New since A3C: a barrier. Every actor waits until the learner has learned from all of them, so each
gradient is on-policy and the result does not depend on timing.
One datum: actor -> queue -> learner.
Lag: 0 by construction; the price is that each round takes as long as its slowest actor.
The preset `paper` has 80 rows per update with four actors: 16 environments of 5 steps.
A batch is learned from once; PPO, which makes several passes, is ppo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.policies import LocalPolicy
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: ActorCriticOptions = ActorCriticOptions(
        correction="none", trace_lambda=0.95, normalize_returns=True
    )
    optimizer: OptimizerOptions = OptimizerOptions("rmsprop", 5e-3, max_grad_norm=2.0)
    trajectory_steps: Count = 10
    """Environment steps per trajectory, and so per update."""
    barrier: Literal["trajectory", "step"] = "trajectory"
    """trajectory: actors wait for each other before each update. step: one policy for all
    environments, which wait for each other at every step."""


def build(config: Config, problem: Problem) -> Topology:
    if config.barrier == "step":
        problem = problem.in_one_actor()
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    weights = topology.board("weights", network)
    pacing = Pacing(weights.source())
    trajectories = topology.queue("trajectories", layout, pacing.slots(problem.num_actors))
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source()),
                trajectories.sink,
                pacing=pacing,
                gamma=config.loss.gamma,
            ),
        )
    topology.add(
        "learner",
        Learner(
            network,
            pacing.batches(trajectories, problem),
            ActorCritic(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    if config.barrier == "step":
        topology.colocate(*topology.of("actor", "learner"))  # they never work at the same time
    return topology


ARCHITECTURE = Architecture(
    "a2c",
    Config,
    build,
    presets("a2c", Config()),
    paper_envs_per_actor=4,
    default_actors=one_actor_per_core,
    actors_wait=True,
)
