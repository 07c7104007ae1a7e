# SPDX-License-Identifier: Apache-2.0
"""DQN (Mnih et al., 2013 and 2015).

    actor --trajectories--> replay --batches--> learner
      ^                                            |
      +----------------- weights ------------------+        one process, taking turns

New: replay breaks the correlation between steps, a target network holds the goal still.
One datum: actor -> queue -> replay -> learner.
Lag: none between acting and learning (the actor takes new weights every row); replayed data is as
old as the buffer is long, which an off-policy method may use.
Deviation: the actor steps several environments at once; the ratio of env steps to updates is kept
by the replay's limiter, not by counting in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.objectives.q_learning import QLearning, QLearningSettings
from veldt.problem import Problem
from veldt.replay import UniformSampler
from veldt.roles.actor import Actor
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.roles.learner import Learner
from veldt.roles.policies.local import EpsilonGreedy, LocalPolicyConfig, annealed_epsilon
from veldt.roles.replay.replay import Replay, batch_layout
from veldt.settings import EpsilonSettings, OptimizerSettings, ReplaySettings
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(QLearningSettings, ReplaySettings, EpsilonSettings, OptimizerSettings):
    """Defaults are tuned for small control tasks; PRESETS["atari"] has the published constants."""

    n_step: int = 3
    target_period_updates: int = 200
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    dueling: bool = False
    """Split the network's head into value and advantage."""


PRESETS = {
    "control": Config(),
    "atari": Config(
        n_step=1,
        double=False,
        td_loss="clipped",
        target_period_updates=2_500,
        optimizer="rmsprop",
        learning_rate=2.5e-4,
        rms_decay=0.95,
        rms_centered=True,
        optimizer_epsilon=0.01 / 32**2,
        max_grad_norm=0.0,
        batch_size=32,
        replay_transitions=1_000_000,
        min_replay_transitions=50_000,
        env_steps_per_update=4.0,
        epsilon_end=0.1,
        epsilon_env_steps=1_000_000,
    ),
}


def default_actors(cores: int) -> int:
    return 1


def build(config: Config, problem: Problem) -> Topology:
    problem.require_action_kind("dqn", "discrete")
    if problem.num_actors != 1:
        raise ConfigurationError("dqn has one actor; use --envs-per-actor, or apex for many actors")
    make_network = problem.make_network("q", dueling=config.dueling)
    layout = problem.trajectory_layout(
        make_network(), config.trajectory_steps, problem.envs_per_actor
    )
    initial = problem.initial_weights(make_network)
    epsilon = partial(annealed_epsilon, *config.schedule(num_actors=1))

    topology = Topology("dqn", make_network)
    trajectories = topology.queue("trajectories", layout, num_slots=2)
    batches = topology.queue("batches", batch_layout(layout, config.batch_size), num_slots=1)
    weights = topology.board("weights", initial.vector, version=initial.version)
    actor = topology.add(
        "actor",
        Actor,
        sink=trajectories.sink,
        policy=LocalPolicyConfig(
            make_network, partial(EpsilonGreedy, epsilon=epsilon), refresh_rows=1
        ),
        policy_port=weights.source(),
        **problem.for_actor(config.trajectory_steps),
    )
    replay = topology.add(
        "replay",
        Replay,
        source=trajectories.source(),
        sink=batches.sink,
        make_store=config.store(layout, config.n_step, config.gamma, problem.frame_stack),
        make_sampler=UniformSampler,
        make_limiter=config.limiter(problem.envs_per_actor),
        batch_size=config.batch_size,
    )
    learner = topology.add(
        "learner",
        Learner,
        source=batches.source(),
        weights=weights.sink,
        initial=weights.source(),
        make_network=make_network,
        make_objective=partial(QLearning, config=config),
        gradients=LocalOptimizerConfig(config.optimizer_config()),
        **problem.for_learner(config.decay_learning_rate),
    )
    topology.colocate(actor, replay, learner)
    return topology
