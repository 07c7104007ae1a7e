# SPDX-License-Identifier: Apache-2.0
"""DQN (Mnih et al., 2013 and 2015).

    actor --trajectories--> replay --batches--> learner
      ^                                            |
      +----------------- weights ------------------+        one process, taking turns

New: replay breaks the correlation between steps, a target network holds the goal still.
One datum: actor -> queue -> replay -> learner.
Lag: none between acting and learning (the actor takes new weights every row); replayed data is as
old as the buffer is long, which an off-policy method may use.
Deviations: the actor steps several environments at once; the ratio of env steps to updates is kept
by the replay's limiter, not by counting in a loop. Evaluation acts greedily, where the paper keeps
5% random actions. A prioritized replay is apex's, also with one actor.
"""

from __future__ import annotations

from dataclasses import dataclass

from veldt.architectures import Architecture, one_actor
from veldt.errors import ConfigurationError
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies import LocalPolicy
from veldt.roles.replay import Replay, ReplayOptions, UniformTable
from veldt.roles.selection import EpsilonOptions
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: QLearningOptions = QLearningOptions(n_step=3, target_period_updates=200)
    replay: ReplayOptions = ReplayOptions()
    exploration: EpsilonOptions = EpsilonOptions()
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=10.0)
    trajectory_steps: Count = 4
    """Rows an actor collects before it hands them to the replay."""
    dueling: bool = False
    """Split the network's head into value and advantage."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("dqn", "discrete")
    problem.require_no_memory("dqn")
    if problem.num_actors != 1:
        raise ConfigurationError("dqn has one actor; use --envs-per-actor, or apex for many actors")
    network = problem.network("q", config.loss, dueling=config.dueling)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)
    table = UniformTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batches = topology.queue("batches", table.batch_layout, 1)
    explore = config.exploration.greedy(problem.num_actors)
    topology.add(
        "actor",
        Actor(
            environments,
            LocalPolicy(network, weights.source(), explore, refresh_rows=1),
            trajectories.sink,
        ),
    )
    topology.add("replay", Replay(trajectories.source(), [batches.sink], table))
    topology.add(
        "learner",
        Learner(
            network,
            batches.source(),
            QLearning(config.loss),
            LocalOptimizer(config.optimizer),
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    topology.colocate(*topology.of("actor", "replay", "learner"))
    return topology


ARCHITECTURE = Architecture(
    "dqn", Config, build, presets("dqn", Config()), default_actors=one_actor
)
