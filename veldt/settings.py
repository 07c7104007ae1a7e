# SPDX-License-Identifier: Apache-2.0
"""Groups of options that several architectures share; a Config inherits the groups it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from veldt.errors import ConfigurationError
from veldt.optimizers import OptimizerConfig
from veldt.replay import Fifo, PrioritizedSampler, RateLimiter, SoftCap, TransitionStore
from veldt.types import VALUE_BEST, VALUE_TAKEN, Layout

MakeStore = Callable[[], TransitionStore]

_ROOM = 1.25  # memory of a softly capped replay, in terms of its cap


@dataclass(frozen=True)
class OptimizerSettings:
    """How gradients become steps."""

    optimizer: str = "adam"
    """adam, rmsprop (epsilon inside the root), sgd or adagrad."""
    learning_rate: float = 1e-3
    """Step size."""
    decay_learning_rate: bool = False
    """Let the learning rate fall linearly to 0 over --total-env-steps."""
    rms_decay: float = 0.99
    """Decay of RMSProp's mean square."""
    rms_centered: bool = False
    """RMSProp divides by the standard deviation instead of the root mean square."""
    momentum: float = 0.0
    """Momentum of sgd and rmsprop."""
    adam_beta1: float = 0.9
    """Decay of Adam's mean gradient."""
    optimizer_epsilon: float = 1e-5
    """Added inside the root by rmsprop and adagrad, outside by adam."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm; 0: never."""

    def optimizer_config(self) -> OptimizerConfig:
        return OptimizerConfig(
            self.optimizer,
            self.learning_rate,
            decay=self.rms_decay,
            epsilon=self.optimizer_epsilon,
            momentum=self.momentum,
            betas=(self.adam_beta1, 0.999),
            centered=self.rms_centered,
            max_grad_norm=self.max_grad_norm,
        )


@dataclass(frozen=True)
class ReplaySettings:
    """What is kept, and how often it is learned from."""

    batch_size: int = 256
    """Transitions per update."""
    replay_transitions: int = 50_000
    """Transitions kept; the oldest go first."""
    min_replay_transitions: int = 1_000
    """Transitions before the first update."""
    env_steps_per_update: float | None = 16.0
    """Environment steps for each update; none: actors and learners run as fast as they can."""
    trajectory_steps: int = 4
    """Rows an actor collects before it hands them to the replay."""

    def limiter(self, envs_per_actor: int) -> Callable[[], RateLimiter]:
        """Makes the limiter that keeps the ratio of samples to inserts."""
        self._check(envs_per_actor)
        per_update = self.env_steps_per_update
        return partial(
            RateLimiter,
            self.batch_size / per_update if per_update else None,
            self.min_replay_transitions,
            largest_insert=self.trajectory_steps * envs_per_actor,
            largest_sample=self.batch_size,
        )

    def _check(self, envs_per_actor: int) -> None:
        room, trajectory = self.replay_transitions, self.trajectory_steps * envs_per_actor
        if room < max(2 * trajectory, self.min_replay_transitions):
            raise ConfigurationError(
                f"replay_transitions is {room:,}, less than two trajectories of {trajectory:,} or"
                f" min_replay_transitions ({self.min_replay_transitions:,}); raise it"
            )
        if self.env_steps_per_update is not None and self.env_steps_per_update <= 0:
            raise ConfigurationError("env_steps_per_update must be positive, or none for no limit")

    def store(self, layout: Layout, n_step: int, discount: float, frame_stack: int) -> MakeStore:
        """Makes the store; by default a plain ring of transitions."""
        return partial(
            TransitionStore,
            layout,
            self.replay_transitions,
            n_step=n_step,
            discount=discount,
            frame_stack=frame_stack,
        )


@dataclass(frozen=True)
class PrioritizedReplaySettings(ReplaySettings):
    """What is learned from first, and how much of it waits."""

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

    def store(self, layout: Layout, n_step: int, discount: float, frame_stack: int) -> MakeStore:
        """Softly capped: nothing is evicted between two trims unless the room above the cap is
        used up. Items appear once their actor's values are all there."""
        cap, period = self.replay_transitions, self.trim_period_updates
        return partial(
            TransitionStore,
            layout,
            int(cap * _ROOM) if period else cap,
            n_step=n_step,
            discount=discount,
            frame_stack=frame_stack,
            outputs=(VALUE_TAKEN, VALUE_BEST),
            wait_for_outputs=True,
            remover=SoftCap(cap, period) if period else Fifo(),
        )

    def sampler(self) -> Callable[[TransitionStore], PrioritizedSampler]:
        return partial(
            PrioritizedSampler, alpha=self.priority_exponent, beta=self.importance_exponent
        )


@dataclass(frozen=True)
class EpsilonSettings:
    """Exploration that fades."""

    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.02
    """Share of random actions after the schedule."""
    epsilon_env_steps: int = 20_000
    """Environment steps, of all actors together, over which epsilon falls."""

    def schedule(self, num_actors: int) -> tuple[float, float, float]:
        """From, to, and over how many steps of one actor."""
        return self.epsilon_start, self.epsilon_end, self.epsilon_env_steps / num_actors


@dataclass(frozen=True)
class LadderSettings:
    """Exploration that differs between environments and stays."""

    epsilon_base: float = 0.1
    """dqn: share of random actions of the most curious environment."""
    epsilon_alpha: float = 7.0
    """dqn: the least curious environment has epsilon_base to the power 1 + this."""
