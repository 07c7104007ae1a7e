# SPDX-License-Identifier: Apache-2.0
"""Epsilon-greedy exploration: decaying, drawn per worker, or a ladder over all environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.losses.asynchronous_q import AsynchronousQOptions
from veldt.networks import MASKED_LOGIT, Network, Outputs, QOutput, masked_q
from veldt.options.checked import CountOrNone, Fraction, NotNegative, Options
from veldt.roles.policies.selection import Selection, environment_numbers
from veldt.types import VALUE_BEST, VALUE_TAKEN, PolicyReply

_LONGEST_HOLD_STEPS = 100

Epsilon = Callable[[int, np.ndarray], "float | np.ndarray"]
"""Share of random actions after so many env steps of this node, for environments by number."""


def linear(start: float, end: float, horizon: float, now: float) -> float:
    """From `start` at 0 to `end` at `horizon` and constant after; `now` in the horizon's unit.

    `functools.partial(linear, 1.0, 0.1, 1_000_000)` is a schedule that can be sent to a process.
    """
    if horizon <= 0:
        return end
    share = min(max(now / horizon, 0.0), 1.0)
    return start + share * (end - start)


@dataclass(frozen=True)
class HeldOptions(Options):
    """How long a random action lasts."""

    hold_exponent: NotNegative = 0.0
    """Random actions are held for n steps with a chance ~ n^-this (2 in the paper of Dabney et al.,
    2020), which finds distant goals; 0: each lasts one step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0.0 < self.hold_exponent <= 1.0:
            raise ConfigurationError(
                f"hold_exponent is {self.hold_exponent}; use a number above 1, or 0 for none"
            )


@dataclass(frozen=True)
class EpsilonOptions(HeldOptions):
    """Exploration that decays."""

    epsilon_start: Fraction = 1.0
    """Share of random actions at the start."""
    epsilon_end: Fraction = 0.02
    """Share of random actions after the schedule."""
    epsilon_env_steps: CountOrNone = 20_000
    """Environment steps, of all actors together, over which epsilon falls."""

    def greedy(self, num_actors: int) -> EpsilonGreedy:
        """The selection of each of so many actors, which sees its share of all steps."""
        horizon = self.epsilon_env_steps / num_actors
        epsilon = AnnealedEpsilon(self.epsilon_start, self.epsilon_end, horizon)
        return EpsilonGreedy(epsilon, self.hold_exponent)


@dataclass(frozen=True)
class AnnealedEpsilon:
    """Decreases linearly over `env_steps` of each actor."""

    start: float
    end: float
    env_steps: float

    def __call__(self, context: NodeContext) -> Epsilon:
        return lambda env_steps, _: linear(self.start, self.end, self.env_steps, env_steps)


@dataclass(frozen=True)
class DrawnEpsilon:
    """Decreases from 1 to a value that each actor draws once (A3C's value-based workers)."""

    ends: tuple[float, ...]
    odds: tuple[float, ...]
    env_steps: float

    @staticmethod
    def of(options: AsynchronousQOptions, num_actors: int) -> DrawnEpsilon:
        """The schedule counts the steps of all workers; each sees its share."""
        horizon = options.epsilon_env_steps / num_actors
        return DrawnEpsilon(options.epsilon_ends, options.epsilon_odds, horizon)

    def __call__(self, context: NodeContext) -> Epsilon:
        end = float(context.random("epsilon").choice(self.ends, p=self.odds))
        return AnnealedEpsilon(1.0, end, self.env_steps)(context)


@dataclass(frozen=True)
class LadderOptions(HeldOptions):
    """Exploration that differs between environments and is constant."""

    epsilon_base: Fraction = 0.1
    """Share of random actions of the environment that explores most (dqn, r2d2)."""
    epsilon_alpha: NotNegative = 7.0
    """The environment that explores least has epsilon_base to the power 1 + this (dqn, r2d2)."""

    def greedy(self, num_envs: int) -> EpsilonGreedy:
        """The selection of all actors, which have so many environments together."""
        ladder = LadderEpsilon(num_envs, self.epsilon_base, self.epsilon_alpha)
        return EpsilonGreedy(ladder, self.hold_exponent)


@dataclass(frozen=True)
class LadderEpsilon:
    """Ape-X: environment i of N acts with base^(1 + alpha i / (N - 1)), constantly."""

    num_envs: int
    base: float
    alpha: float

    def __call__(self, context: NodeContext) -> Epsilon:
        exponents = 1.0 + self.alpha * np.arange(self.num_envs) / max(self.num_envs - 1, 1)
        epsilons = self.base**exponents
        return lambda _, environments: epsilons[environments]


@dataclass(eq=False)
class EpsilonGreedy(Selection):
    """The best action, or with probability epsilon a random allowed one.

    Each row stores the values of the action taken and of the best one, so that the error of an
    n-step window needs no network."""

    exploration: Callable[[NodeContext], Epsilon]
    hold_exponent: float = 0.0

    def open(self, network: Network, context: NodeContext) -> None:
        self._epsilon, self._index = self.exploration(context), context.index
        self._random = context.random("exploration")
        # This counter survives restarts and is part of every checkpoint.
        self._env_steps = context.telemetry.counter("env_steps")
        self._held, self._left = np.zeros((2, 0), np.int64)

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        assert isinstance(outputs, QOutput)
        q_values = masked_q(outputs.q_values, observations).cpu().numpy()
        action = q_values.argmax(-1)
        rows = np.arange(len(action))
        environments = environment_numbers(self._index, len(action), observations)
        epsilon = self._epsilon(int(self._env_steps.value), environments)
        explore = self._random.random(len(action)) < epsilon
        if self.hold_exponent:
            self._hold(action, explore, q_values, environments)
        elif explore.any():
            action[explore] = self._any_action(q_values[explore])
        values = {VALUE_TAKEN: q_values[rows, action], VALUE_BEST: q_values.max(-1)}
        return PolicyReply(action, action, values, 0)

    def _hold(
        self,
        action: np.ndarray,
        explore: np.ndarray,
        q_values: np.ndarray,
        environments: np.ndarray,
    ) -> None:
        """Continue held random actions that are still allowed, and begin new ones."""
        missing = int(environments.max()) + 1 - len(self._held)
        if missing > 0:
            self._held, self._left = (
                np.pad(each, (0, missing)) for each in (self._held, self._left)
            )
        held, left = self._held[environments], self._left[environments]
        left[q_values[np.arange(len(held)), held] <= MASKED_LOGIT] = 0
        begin = explore & (left == 0)
        if begin.any():
            held[begin] = self._any_action(q_values[begin])
            steps = self._random.zipf(self.hold_exponent, int(begin.sum()))
            left[begin] = np.minimum(steps, _LONGEST_HOLD_STEPS)
        going = left > 0
        action[going] = held[going]
        left[going] -= 1
        self._held[environments], self._left[environments] = held, left

    def _any_action(self, q_values: np.ndarray) -> np.ndarray:
        keys = self._random.random(q_values.shape)
        keys[q_values <= MASKED_LOGIT] = -1.0
        return keys.argmax(-1)
