# SPDX-License-Identifier: Apache-2.0
"""Ape-X DQN and Ape-X DPG (Horgan et al., 2018).

    actor x N --trajectories + values--> replay --batches--> learner
       ^                                   ^                    |  |
       |                                   +---- priorities ----+  |
       +------------------------- weights -------------------------+

DQN for discrete actions, DPG for Box actions.
New since Gorila: one central prioritized replay and one learner instead of many. What to learn from
is chosen among all that many actors, each with its own share of random actions, have seen; the
first priority of a transition comes from the values its actor computed when it acted.
One datum: actor -> queue -> replay -> learner, and its new priority -> queue -> replay.
Lag: none that matters to an off-policy method; the age of what is replayed is reported.
Deviations: the replay subtracts the actor's values where it cuts n-step windows, which may then run
from one send into the next. DPG bounds each entry of dq/da on its way into the policy, where the
paper bounds the policy's gradient; the oldest leave the replay, where the paper's DPG lets those
of low priority go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from veldt.architectures import Architecture
from veldt.losses import Objective
from veldt.losses.dpg import DPG, DPGOptions
from veldt.losses.q_learning import QLearning, QLearningOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies import LocalPolicy
from veldt.roles.replay import VALUES, PrioritizedReplayOptions, PrioritizedTable, add_replay
from veldt.roles.selection import GaussianNoise, LadderOptions, Selection
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small control tasks; the preset `paper` has the published constants."""

    loss: QLearningOptions = QLearningOptions(n_step=3)
    dpg: DPGOptions = DPGOptions()
    replay: PrioritizedReplayOptions = PrioritizedReplayOptions()
    exploration: LadderOptions = LadderOptions()
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=10.0)
    trajectory_steps: Count = 4
    """Rows an actor collects before it hands them to the replay."""
    dueling: bool = True
    """DQN: split the network's head into value and advantage."""
    refresh_env_steps: CountOrNone = 20
    """Steps of each environment between two refreshes of an actor's weights."""


def build(config: Config, problem: Problem) -> Topology:
    problem.require_actions("apex", "discrete", "box")
    problem.require_no_memory("apex")
    is_box = problem.spec.action.kind == "box"
    network = problem.network("dpg" if is_box else "q", config.loss, dueling=config.dueling)
    environments = problem.environments()
    num_envs = problem.num_actors * problem.envs_per_actor
    explore: Selection = config.exploration.greedy(num_envs)
    objective: Objective = QLearning(config.loss)
    gradients = LocalOptimizer(config.optimizer)
    if is_box:
        explore = GaussianNoise(sigma=config.dpg.noise_sigma)
        objective = DPG(config.loss, config.dpg)
        own = replace(config.optimizer, learning_rate=config.dpg.actor_learning_rate)
        gradients = LocalOptimizer(config.optimizer, {"actor_part": own})
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, VALUES)
    table = PrioritizedTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
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
        "learner",
        Learner(
            network,
            add_replay(topology, trajectories, table),
            objective,
            gradients,
            weights.source(),
            weights.sink,
            decay=config.optimizer.decays_over(problem.schedule),
            compute=problem.compute,
        ),
    )
    return topology


ARCHITECTURE = Architecture("apex", Config, build, presets("apex", Config()))
