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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from veldt.errors import ConfigurationError
from veldt.objectives.dpg import DPG, DPGSettings
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.problem import Problem
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policies.local import (
    EpsilonGreedy,
    GaussianNoise,
    LocalPolicyConfig,
    laddered_epsilon,
)
from veldt.roles.replay.replay import Replay, batch_layout, priority_layout
from veldt.settings import LadderSettings, OptimizerSettings, PrioritizedReplaySettings
from veldt.topology import Topology
from veldt.types import VALUE_BEST, VALUE_TAKEN, Field


@dataclass(frozen=True)
class Config(
    QLearningSettings, DPGSettings, PrioritizedReplaySettings, LadderSettings, OptimizerSettings
):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    algorithm: str = "dqn"
    """dqn for discrete actions, dpg (deterministic policy gradients) for bounded Box actions."""
    n_step: int = 3
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    dueling: bool = True
    """dqn: split the network's head into value and advantage."""
    refresh_env_steps: int = 20
    """Steps of each environment between two refreshes of an actor's weights."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("dqn", "dpg"):
            raise ConfigurationError(f"unknown algorithm '{self.algorithm}'; use dqn or dpg")


PRESETS = {
    "control": Config(),
    "control_dpg": Config(algorithm="dpg", gamma=0.95, learning_rate=3e-3, env_steps_per_update=4),
    "atari": Config(
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
    problem.require_action_kind("apex", "box" if is_dpg else "discrete")
    make_network = problem.make_network("dpg" if is_dpg else "q", dueling=config.dueling)
    values = dict.fromkeys((VALUE_TAKEN, VALUE_BEST), Field((), "float32"))
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor, **values
    )
    batch = batch_layout(layout, config.batch_size, tuple(values))
    initial = problem.initial_weights(make_network)
    critic = config.optimizer_config()
    actor = replace(critic, learning_rate=config.actor_learning_rate)

    topology = Topology("apex", make_network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batches = topology.queue("batches", batch, config.prefetch_batches)
    errors = priority_layout(config.batch_size)
    priorities = topology.queue("priorities", errors, config.prefetch_batches + 2)
    weights = topology.board("weights", initial.vector, version=initial.version)
    explore = _exploration(config, problem)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor,
            sink=trajectories.sink,
            policy=LocalPolicyConfig(make_network, explore, config.refresh_env_steps),
            policy_port=weights.source(),
            **problem.for_actor(config.trajectory_steps),
        )
    topology.add(
        "replay",
        Replay,
        source=trajectories.source(),
        sink=batches.sink,
        feedback=priorities.source(),
        make_store=config.store(layout, config.n_step, config.gamma, problem.frame_stack),
        make_sampler=config.sampler(),
        make_limiter=config.limiter(problem.envs_per_actor),
        batch_size=config.batch_size,
        initial_priorities=config.actor_priorities,
    )
    topology.add(
        "learner",
        Learner,
        source=batches.source(),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(DPG if is_dpg else QLearning, config=config),
        gradients=LocalOptimizerConfig(critic, {"actor_part": actor} if is_dpg else {}),
        feedback=priorities.sink,
        **problem.for_learner(config.decay_learning_rate),
    )
    return topology


def _exploration(config: Config, problem: Problem) -> Callable[..., Any]:
    if config.algorithm == "dpg":
        return partial(GaussianNoise, sigma=config.noise_sigma)
    rungs = (problem.num_actors, config.epsilon_base, config.epsilon_alpha, problem.envs_per_actor)
    return partial(EpsilonGreedy, epsilon=partial(laddered_epsilon, *rungs))
