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

from veldt.objectives import Objective
from veldt.objectives.dpg import DPG, DPGOptions
from veldt.objectives.q_learning import QLearning, QLearningOptions
from veldt.objectives.sac import SAC, TwinCriticOptions
from veldt.objectives.td3 import TD3
from veldt.optimizers import OptimizerOptions
from veldt.options.checked import Count, CountOrNone, Options
from veldt.options.fields import changed
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.learner import Learner
from veldt.roles.policies.local import LocalPolicy
from veldt.roles.policies.selection import (
    EpsilonGreedy,
    GaussianNoise,
    LadderOptions,
    Selection,
    SquashedDraws,
)
from veldt.roles.replay.replay import PrioritizedSource, Replay
from veldt.roles.replay.tables import VALUES, PrioritizedReplayOptions, PrioritizedTable
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults are tuned for small control tasks; PRESETS["paper"] has the published constants."""

    algorithm: Literal["dqn", "dpg", "sac", "td3"] = "dqn"
    """dqn for discrete actions; sac, td3 or dpg (the paper's) for bounded Box actions."""
    loss: QLearningOptions = QLearningOptions(n_step=3)
    dpg: DPGOptions = DPGOptions()
    twins: TwinCriticOptions = TwinCriticOptions()
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


_TWINS = changed(
    Config("sac"),
    n_step=1,
    max_grad_norm=0.0,
    optimizer_epsilon=1e-8,
    env_steps_per_update=1.0,
    trajectory_steps=1,
    refresh_env_steps=1,
    min_replay_transitions=500,
    replay_transitions=200_000,
    priority_exponent=0.0,
    importance_exponent=0.0,
    trim_period_updates=0,
    prefetch_batches=2,
    num_envs=1,
)
PRESETS = {
    "control": Config(),
    "continuous": _TWINS,
    "continuous_td3": changed(_TWINS, algorithm="td3", noise_sigma=0.2),
    "continuous_dpg": changed(
        Config(), algorithm="dpg", gamma=0.95, learning_rate=3e-3, env_steps_per_update=4.0
    ),
    "paper": changed(
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
    problem.require_actions("apex", "discrete" if config.algorithm == "dqn" else "box")
    problem.require_no_memory("apex")
    head = "q" if config.algorithm == "dqn" else config.algorithm
    network = problem.network(head, config.loss, dueling=config.dueling)
    if config.algorithm in ("sac", "td3"):
        network = problem.twin_network(head, config.loss, config.twins.critic_sizes)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments, VALUES)
    table = PrioritizedTable(config.replay, layout, config.loss, problem.frame_stack)

    topology = Topology(network)
    weights = topology.board("weights", network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batches = topology.queue("batches", table.batch_layout, config.replay.prefetch_batches)
    errors = table.priority_layout
    priorities = topology.queue("priorities", errors, config.replay.prefetch_batches + 2)
    explore = _exploration(config, problem.num_actors * problem.envs_per_actor)
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
            _objective(config),
            LocalOptimizer(config.optimizer, _actor_optimizer(config)),
            weights.source(),
            weights.sink,
            decay_env_steps=config.optimizer.decays_over(problem.total_env_steps),
            compute=problem.compute,
        ),
    )
    return topology


def _exploration(config: Config, num_envs: int) -> Selection:
    if config.algorithm == "dqn":
        return EpsilonGreedy(config.exploration.ladder(num_envs), config.exploration.hold_exponent)
    if config.algorithm == "sac":
        return SquashedDraws(config.twins.noise_exponent, config.replay.priority_exponent > 0.0)
    exponent = config.twins.noise_exponent if config.algorithm == "td3" else 0.0
    return GaussianNoise(config.dpg.noise_sigma, exponent)


def _objective(config: Config) -> Objective:
    if config.algorithm == "dqn":
        return QLearning(config.loss)
    if config.algorithm == "dpg":
        return DPG(config.loss, config.dpg)
    return SAC(config.twins) if config.algorithm == "sac" else TD3(config.twins)


def _actor_optimizer(config: Config) -> dict[str, OptimizerOptions]:
    """The actor's own, where it has another step size or is not stepped every time."""
    rate = config.dpg.actor_learning_rate
    own = {
        "dpg": {"actor_part": replace(config.optimizer, learning_rate=rate)},
        "td3": {"actor_part": config.optimizer},
    }
    return own.get(config.algorithm, {})
