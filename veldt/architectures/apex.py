# SPDX-License-Identifier: Apache-2.0
"""Ape-X DQN and Ape-X DPG (Horgan et al., 2018).

    actor x N --trajectories + values--> replay --batches--> learner
       ^                                   ^                    |  |
       |                                   +---- priorities ----+  |
       +------------------------- weights -------------------------+

New since Gorila: one central prioritized replay and one learner instead of many. What to learn from is
chosen among everything that many actors, each with its own share of random actions, have seen; the
first priority of a transition comes from the values its actor computed when it acted.
One datum: actor -> queue -> replay -> learner, and its new priority -> queue -> replay.
Lag: none that matters to an off-policy method; the age of what is replayed is reported.
Deviation: the actor sends its values with each row and the replay does the subtraction when it cuts
the n-step window, so that windows may run from one send into the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.dpg import DPG, DPGSettings
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.problem import Problem
from veldt.replay import Fifo, PrioritizedSampler, SoftCap, TransitionStore
from veldt.roles.actor import Actor
from veldt.roles.gradients import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policy import EpsilonGreedy, GaussianNoise, LocalPolicyConfig, laddered_epsilon
from veldt.roles.replay import VALUE_BEST, VALUE_TAKEN, Replay, batch_layout, priority_layout
from veldt.settings import OptimizerSettings, ReplaySettings
from veldt.topology import Topology
from veldt.types import Field, Layout

_ROOM = 1.25  # memory of a softly capped replay, in terms of its cap


@dataclass(frozen=True)
class Config(QLearningSettings, DPGSettings, ReplaySettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    algorithm: str = "dqn"
    """dqn for discrete actions, dpg (deterministic policy gradients) for bounded Box actions."""
    n_step: int = 3
    learning_rate: float = 1e-3
    actor_learning_rate: float = 1e-3
    """dpg: step size of the policy; learning_rate is the critic's."""
    max_grad_norm: float = 10.0
    dueling: bool = True
    """dqn: split the network's head into value and advantage."""
    epsilon_base: float = 0.1
    """dqn: share of random actions of the most curious environment."""
    epsilon_alpha: float = 7.0
    """dqn: the least curious environment has epsilon_base to the power 1 + this."""
    noise_sigma: float = 0.3
    """dpg: deviation of the noise on actions, in units of half their range."""
    refresh_env_steps: int = 20
    """Steps of each environment between two refreshes of an actor's weights."""
    actor_priorities: bool = True
    """Use the actors' values for first priorities; otherwise new data enters at the maximum."""
    priority_exponent: float = 0.6
    """Probability of an item: its priority to this power; 0: uniform."""
    importance_exponent: float = 0.4
    """How far importance weights undo the priorities' bias; 1: fully."""
    trim_period_updates: int = 100
    """Updates between two trims to replay_transitions; 0: a hard cap."""
    prefetch_batches: int = 4
    """Batches that wait for the learner."""

    def __post_init__(self) -> None:
        if self.algorithm not in ("dqn", "dpg"):
            raise ConfigurationError(f"unknown algorithm '{self.algorithm}'; use dqn or dpg")


PRESETS = {
    "control": Config(),
    "control_dpg": Config(algorithm="dpg"),
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
    "paper_dpg": Config(
        algorithm="dpg",
        n_step=5,
        learning_rate=1e-4,
        actor_learning_rate=1e-4,
        max_grad_norm=0.0,
        batch_size=256,
        replay_transitions=1_000_000,
        min_replay_transitions=10_000,
        env_steps_per_update=None,
        trajectory_steps=50,
        refresh_env_steps=100,
        trim_period_updates=0,
        prefetch_batches=16,
    ),
}


def default_actors(cores: int) -> int:
    return cores - 1  # one core is the learner's


def build(config: Config, problem: Problem) -> Topology:
    is_dpg = config.algorithm == "dpg"
    _check_actions(config, problem)
    make_network = problem.make_network("dpg" if is_dpg else "q", dueling=config.dueling)
    values = dict.fromkeys((VALUE_TAKEN, VALUE_BEST), Field((), "float32"))
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor, **values
    )
    initial = problem.initial_weights(make_network)

    topology = Topology("apex", make_network)
    trajectories = topology.queue("trajectories", layout, 2 * problem.num_actors)
    batch = batch_layout(layout, config.batch_size, tuple(values))
    batches = topology.queue("batches", batch, config.prefetch_batches)
    priorities = topology.queue(
        "priorities", priority_layout(config.batch_size), config.prefetch_batches + 2
    )
    weights = topology.board("weights", initial.vector, version=initial.version)
    for _ in range(problem.num_actors):
        topology.add(
            "actor",
            Actor,
            environment=problem.environment,
            num_envs=problem.envs_per_actor,
            num_steps=config.trajectory_steps,
            sink=trajectories.sink,
            policy=LocalPolicyConfig(
                make_network, _exploration(config, problem), config.refresh_env_steps
            ),
            policy_port=weights.source(),
        )
    topology.add(
        "replay",
        Replay,
        source=trajectories.source(),
        sink=batches.sink,
        feedback=priorities.source(),
        make_store=_store(config, problem, layout),
        make_sampler=partial(
            PrioritizedSampler, alpha=config.priority_exponent, beta=config.importance_exponent
        ),
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
        gradients=_optimizers(config),
        feedback=priorities.sink,
        total_env_steps=problem.total_env_steps if config.decay_learning_rate else None,
        device=problem.device,
        torch_threads=problem.learner_threads,
    )
    return topology


def _check_actions(config: Config, problem: Problem) -> None:
    if config.algorithm == "dqn" and problem.spec.action.kind == "box":
        raise ConfigurationError(
            f"{problem.spec.id} has Box actions; use --algorithm dpg, or impala"
        )
    problem.require_action_kind("apex", "box" if config.algorithm == "dpg" else "discrete")


def _exploration(config: Config, problem: Problem) -> partial:
    if config.algorithm == "dpg":
        return partial(GaussianNoise, sigma=config.noise_sigma)
    epsilon = partial(
        laddered_epsilon,
        problem.num_actors,
        config.epsilon_base,
        config.epsilon_alpha,
        problem.envs_per_actor,
    )
    return partial(EpsilonGreedy, epsilon=epsilon)


def _store(config: Config, problem: Problem, layout: Layout) -> partial:
    cap, period = config.replay_transitions, config.trim_period_updates
    return partial(
        TransitionStore,
        layout,
        int(cap * _ROOM) if period else cap,
        n_step=config.n_step,
        discount=config.gamma,
        frame_stack=problem.frame_stack,
        outputs=(VALUE_TAKEN, VALUE_BEST),
        wait_for_outputs=True,
        remover=SoftCap(cap, period) if period else Fifo(),
    )


def _optimizers(config: Config) -> LocalOptimizerConfig:
    critic = config.optimizer_config()
    if config.algorithm == "dqn":
        return LocalOptimizerConfig(critic)
    actor = replace(critic, learning_rate=config.actor_learning_rate)
    return LocalOptimizerConfig(critic, (("actor_part", actor), ("critic_part", critic)))
