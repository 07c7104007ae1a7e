# SPDX-License-Identifier: Apache-2.0
"""PQN (Gallici et al., 2024): DQN made as simple as it can be.

    actor x N --trajectories--> queue --one of each--> learner: several passes over each batch
       ^                                                  |
       +------ weights: no trajectory starts without -----+

New since DQN: no replay and no target network. Many environments make batches that are varied
enough, layer normalization keeps the values from diverging, and Q(lambda) looks further ahead.
One datum: actor -> queue -> learner.
Lag: 0 when a batch arrives, as in PPO; the later passes step away from the weights that acted.
Deviations: layer normalization of convolutions spans rows, columns and channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from veldt.architectures import Architecture, one_actor_per_core
from veldt.losses.pqn import PQN, PQNOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.pacing import Pacing
from veldt.roles.policies import LocalPolicy
from veldt.roles.selection import EpsilonOptions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: PQNOptions = PQNOptions(epochs=4, minibatches=8)
    exploration: EpsilonOptions = EpsilonOptions(epsilon_end=0.02, epsilon_env_steps=20_000)
    optimizer: OptimizerOptions = OptimizerOptions("radam", 2e-3, max_grad_norm=10.0)
    trajectory_steps: Count = 16
    """Environment steps per trajectory, and so per batch."""
    num_envs: CountOrNone = 32
    """Environments of all actors together; 0: by the kind of environment and the cores."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("pqn", "discrete")
    problem.require_no_memory("pqn")
    network = problem.network("q", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    weights = topology.board("weights", network)
    pacing = Pacing(weights.source())
    trajectories = topology.queue("trajectories", layout, pacing.slots(problem.num_actors))
    explore = config.exploration.greedy(problem.num_actors)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source(), explore),
                trajectories.sink,
                pacing=pacing,
            ),
        )
    topology.add(
        "learner",
        Learner(
            network,
            pacing.batches(trajectories, problem),
            PQN(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture(
    "pqn",
    Config,
    build,
    presets("pqn", Config()),
    default_actors=one_actor_per_core,
    actors_wait=True,
)
