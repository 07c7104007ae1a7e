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
Deviation: the replay subtracts the actor's values where it cuts n-step windows, which may then run
from one send into the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from veldt.errors import ConfigurationError
from veldt.objectives import Objective
from veldt.objectives.dpg import DPG, DPGOptions
from veldt.objectives.q_learning import QLearning, QLearningOptions
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.fields import changed
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies.local import LocalPolicy
from veldt.roles.policies.selection import EpsilonGreedy, GaussianNoise, LadderOptions
from veldt.roles.replay.replay import PrioritizedSource, Replay
from veldt.roles.replay.tables import VALUES, PrioritizedReplayOptions, PrioritizedTable
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    algorithm: Literal["dqn", "dpg"] = "dqn"
    """dqn for discrete actions, dpg (deterministic policy gradients) for bounded Box actions."""
    loss: QLearningOptions = QLearningOptions(n_step=3)
    dpg: DPGOptions = DPGOptions()
    replay: PrioritizedReplayOptions = PrioritizedReplayOptions()
    exploration: LadderOptions = LadderOptions()
    optimizer: OptimizerOptions = OptimizerOptions(max_grad_norm=10.0)
    trajectory_steps: Count = 4
    """Rows an actor collects before it hands them to the replay."""
    dueling: bool = True
    """dqn: split the network's head into value and advantage."""
    refresh_env_steps: CountOrNone = 20
    """Steps of each environment between two refreshes of an actor's weights."""


PRESETS = {
    "control": Config(),
    "control_dpg": changed(
        Config(), algorithm="dpg", gamma=0.95, learning_rate=3e-3, env_steps_per_update=4.0
    ),
    "atari": changed(
        Config(),
        td_loss="squared",
        target_period_updates=2_500,
        optimizer="rmsprop",
        learning_rate=2.5e-4 / 4,
        rms_decay=0.95,
        rms_centered=True,
        optimizer_epsilon=1.5e-7,
        max_grad_norm=40.0,
        batch_size=512,
        replay_transitions=2_000_000,
        min_replay_transitions=50_000,
        env_steps_per_update=None,
        trajectory_steps=50,
        epsilon_base=0.4,
        refresh_env_steps=100,
        prefetch_batches=16,
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    is_dpg = config.algorithm == "dpg"
    if not is_dpg and problem.spec.action.kind == "box":
        raise ConfigurationError(f"{problem.spec.id} has Box actions; use --algorithm dpg")
    problem.require_actions("apex", "box" if is_dpg else "discrete")
    problem.require_no_memory("apex")
    network = problem.network("dpg" if is_dpg else "q", dueling=config.dueling)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, VALUES)
    table = PrioritizedTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batches = topology.queue("batches", table.batch_layout, config.replay.prefetch_batches)
    errors = table.priority_layout
    priorities = topology.queue("priorities", errors, config.replay.prefetch_batches + 2)
    num_envs = problem.num_actors * problem.envs_per_actor
    ladder = EpsilonGreedy(config.exploration.ladder(num_envs))
    explore = GaussianNoise(config.dpg.noise_sigma) if is_dpg else ladder
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
    dpg: Objective = DPG(config.loss, config.dpg)
    actor = replace(config.optimizer, learning_rate=config.dpg.actor_learning_rate)
    topology.add(
        "learner",
        Learner(
            network,
            PrioritizedSource(batches.source(), priorities.sink),
            dpg if is_dpg else QLearning(config.loss),
            LocalOptimizer(config.optimizer, {"actor_part": actor} if is_dpg else {}),
            weights.source(),
            weights.sink,
            decay_env_steps=config.optimizer.decays_over(problem.total_env_steps),
            compute=problem.compute,
        ),
    )
    return topology
