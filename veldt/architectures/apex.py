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
from math import prod
from typing import Any

from veldt.errors import ConfigurationError
from veldt.objectives.dpg import DPG, DPGSettings
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.objectives.sac import SAC, SACSettings
from veldt.objectives.td3 import TD3, TD3Settings
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
from veldt.roles.policies.squashed_draws import SquashedDraws
from veldt.roles.replay.replay import Replay, batch_layout, priority_layout
from veldt.settings import LadderSettings, OptimizerSettings, PrioritizedReplaySettings
from veldt.topology import Topology
from veldt.types import VALUE_BEST, VALUE_TAKEN, EnvironmentSpec, Field

_FEW_INPUTS = 8


@dataclass(frozen=True)
class Config(
    QLearningSettings,
    DPGSettings,
    SACSettings,
    TD3Settings,
    PrioritizedReplaySettings,
    LadderSettings,
    OptimizerSettings,
):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    algorithm: str = "dqn"
    """dqn for discrete actions; sac, td3 or dpg (the paper's) for bounded Box actions."""
    n_step: int = 3
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    dueling: bool = True
    """dqn: split the network's head into value and advantage."""
    refresh_env_steps: int = 20
    """Steps of each environment between two refreshes of an actor's weights."""

    noise_exponent: float = 1.0
    """sac, td3: color of the noise on actions; 0: white, 1: pink."""
    critic_sizes: tuple[int, ...] = ()
    """sac, td3: widths of the layers of actor and critics; none: 64,64 where observation and action
    have 8 numbers or fewer, else 256,256."""
    environments: int = 0
    """Environments of all actors together; 0: from a quick measurement."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("dqn", "dpg", "sac", "td3"):
            raise ConfigurationError(
                f"unknown algorithm '{self.algorithm}'; use dqn, dpg, sac or td3"
            )


_TWINS = Config(
    algorithm="sac",
    n_step=1,
    max_grad_norm=0.0,
    optimizer_epsilon=1e-8,
    env_steps_per_update=1,
    trajectory_steps=1,
    refresh_env_steps=1,
    min_replay_transitions=500,
    replay_transitions=200_000,
    priority_exponent=0.0,
    importance_exponent=0.0,
    trim_period_updates=0,
    prefetch_batches=2,
    environments=1,
)
PRESETS = {
    "control": Config(),
    "control_dpg": Config(algorithm="dpg", gamma=0.95, learning_rate=3e-3, env_steps_per_update=4),
    "control_sac": _TWINS,
    "control_td3": replace(_TWINS, algorithm="td3", noise_sigma=0.2),
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


_LEARNING: dict[str, tuple[str, Callable[..., Any]]] = {
    "dqn": ("q", QLearning),
    "dpg": ("dpg", DPG),
    "sac": ("sac", SAC),
    "td3": ("td3", TD3),
}


def build(config: Config, problem: Problem) -> Topology:
    is_dqn, has_twins = config.algorithm == "dqn", config.algorithm in ("sac", "td3")
    if is_dqn and problem.spec.action.kind == "box":
        raise ConfigurationError(f"{problem.spec.id} has Box actions; use --algorithm sac")
    problem.require_action_kind("apex", "discrete" if is_dqn else "box")
    head, objective = _LEARNING[config.algorithm]
    own_shape = _twin_shape(config, problem.spec) if has_twins else {}
    make_network = problem.make_network(head, dueling=config.dueling, **own_shape)
    values = dict.fromkeys((VALUE_TAKEN, VALUE_BEST), Field((), "float32"))
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor, **values
    )
    batch = batch_layout(layout, config.batch_size, tuple(values))
    initial = problem.initial_weights(make_network)
    critic = config.optimizer_config()
    actors = {
        "dpg": {"actor_part": replace(critic, learning_rate=config.actor_learning_rate)},
        "td3": {"actor_part": critic},  # of its own, since it is not stepped every time
    }

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
        make_objective=partial(objective, config=config),
        gradients=LocalOptimizerConfig(critic, actors.get(config.algorithm, {})),
        feedback=priorities.sink,
        **problem.for_learner(config.decay_learning_rate),
    )
    return topology


def _twin_shape(config: Config, spec: EnvironmentSpec) -> dict[str, Any]:
    """Small tasks do not need the published width, which costs fourteen times the time."""
    inputs = sum(prod(leaf.shape) for leaf in spec.observation) + len(spec.action.low)
    sizes = config.critic_sizes or ((64, 64) if inputs <= _FEW_INPUTS else (256, 256))
    return {"hidden_sizes": sizes, "activation": "relu"}


def _exploration(config: Config, problem: Problem) -> Callable[..., Any]:
    if config.algorithm == "sac":
        keep = config.priority_exponent > 0.0
        return partial(SquashedDraws, noise_exponent=config.noise_exponent, keep_values=keep)
    if config.algorithm in ("dpg", "td3"):
        exponent = config.noise_exponent if config.algorithm == "td3" else 0.0
        return partial(GaussianNoise, sigma=config.noise_sigma, noise_exponent=exponent)
    rungs = (problem.num_actors, config.epsilon_base, config.epsilon_alpha, problem.envs_per_actor)
    return partial(EpsilonGreedy, epsilon=partial(laddered_epsilon, *rungs))
