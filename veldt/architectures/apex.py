# SPDX-License-Identifier: Apache-2.0
"""Ape-X DQN and Ape-X DPG (Horgan et al., 2018).

    actor x N --trajectories + values--> replay --batches--> learner
       ^                                   ^                    |  |
       |                                   +---- priorities ----+  |
       +------------------------- weights -------------------------+

New since Gorila: one central prioritized replay and one learner instead of many. What to learn from
is chosen among all that many actors, each with its own share of random actions, have seen; the
first priority of a transition comes from the values its actor computed when it acted.
One datum: actor -> queue -> replay -> learner, and its new priority -> queue -> replay.
Lag: none that matters to an off-policy method; the age of what is replayed is reported.
Deviations: the replay subtracts the actor's values where it cuts n-step windows, which may then run
from one send into the next. dpg bounds each entry of dq/da on its way into the policy, where the
paper bounds the policy's gradient; the oldest leave the replay, where the paper's DPG lets those
of low priority go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veldt.losses import Objective
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.continuous import ContinuousOptions
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies.local import LocalPolicy
from veldt.roles.policies.selection import LadderOptions, Selection
from veldt.roles.replay.replay import PrioritizedSource, Replay
from veldt.roles.replay.tables import VALUES, PrioritizedReplayOptions, PrioritizedTable
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults are tuned for small control tasks; PRESETS["paper"] has the published constants."""

    algorithm: Literal["dqn", "dpg", "sac", "td3"] = "dqn"
    """dqn for discrete actions; sac, td3 or dpg (the paper's) for bounded Box actions."""
    loss: QLearningOptions = QLearningOptions(n_step=3)
    continuous: ContinuousOptions = ContinuousOptions()
    replay: PrioritizedReplayOptions = PrioritizedReplayOptions()
    exploration: LadderOptions = LadderOptions()
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=10.0)
    trajectory_steps: Count = 4
    """Rows an actor collects before it hands them to the replay."""
    dueling: bool = True
    """dqn: split the network's head into value and advantage."""
    refresh_env_steps: CountOrNone = 20
    """Steps of each environment between two refreshes of an actor's weights."""
    num_envs: CountOrNone = 0
    """Environments of all actors together; 0: by the kind of environment and the cores."""


PRESETS = presets(__file__, Config())


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("apex", "discrete" if config.algorithm == "dqn" else "box")
    problem.require_no_memory("apex")
    network = problem.network("q", config.loss, dueling=config.dueling)
    environments = problem.environments()
    num_envs = problem.num_actors * problem.envs_per_actor
    explore: Selection = config.exploration.greedy(num_envs, problem.is_elastic)
    objective: Objective = QLearning(config.loss)
    gradients = LocalOptimizer(config.optimizer)
    if config.algorithm != "dqn":
        ranked = config.replay.priority_exponent > 0.0
        network, explore, objective, gradients = config.continuous.method(
            config.algorithm, problem, config.loss, config.optimizer, ranked
        )
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, VALUES)
    table = PrioritizedTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batches = topology.queue("batches", table.batch_layout, config.replay.prefetch_batches)
    errors = table.priority_layout
    priorities = topology.queue("priorities", errors, config.replay.prefetch_batches + 2)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor(
                environments,
                LocalPolicy(network, weights.source(), explore, config.refresh_env_steps),
                trajectories.sink,
            ),
        )
    topology.add(
        "replay", Replay(trajectories.source(), [batches.sink], table, priorities.source())
    )
    topology.add(
        "learner",
        Learner(
            network,
            PrioritizedSource(batches.source(), priorities.sink),
            objective,
            gradients,
            weights.source(),
            weights.sink,
            decay_env_steps=config.optimizer.decays_over(problem.total_env_steps),
            compute=problem.compute,
        ),
    )
    return topology
