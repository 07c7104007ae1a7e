# SPDX-License-Identifier: Apache-2.0
"""Ways to turn a network's outputs into actions: draws from a policy, noise, epsilon-greedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.losses.asynchronous_q import AsynchronousQOptions
from veldt.networks import (
    MASKED_LOGIT,
    ActionOutput,
    BoundedActionNetwork,
    Network,
    Outputs,
    PolicyValueOutput,
    QOutput,
    SACNetwork,
    SACOutput,
    masked_q,
)
from veldt.networks.distributions import Gaussian
from veldt.options.checked import CountOrNone, Fraction, NotNegative, Options
from veldt.options.groups import EXPLORATION_OPTIONS
from veldt.role import Part
from veldt.types import VALUE_BEST, VALUE_TAKEN, PolicyReply

ENVIRONMENT = "environment_index"
"""Extra entry of the observations passed to a Selection: each row's number among all
environments."""

_NOISE_STEPS = 1024  # length of a sequence of colored noise
KEPT = ("behaviour_value",)
"""Outputs that SampleActions stores with `keep_value`."""


class Selection(Part):
    """Turns network outputs for some rows into stored action, env action and stored outputs."""

    def open(self, network: Network, context: NodeContext) -> None:
        """Prepare to choose actions from outputs of `network`."""

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        raise NotImplementedError


def environment_numbers(
    actor: int, width: int, observations: dict[str, torch.Tensor]
) -> np.ndarray:
    """Number of each row's environment among those of all actors."""
    if ENVIRONMENT in observations:
        return observations[ENVIRONMENT].numpy()
    return actor * width + np.arange(width)


@dataclass(eq=False)
class SampleActions(Selection):
    """Draws from the policy's distribution and stores its parameters: the behaviour policy.

    `keep_value`: also stores the critic's value, for PPO's value clipping. `pink_share`: share of
    the environments whose noise on Box actions is pink. Noise that is independent from step to step
    averages out, and distant goals are not reached; if all environments had correlated noise, fine
    control would suffer. Each single draw still has the policy's own distribution."""

    keep_value: bool = False
    pink_share: float = 0.0

    def open(self, network: Network, context: NodeContext) -> None:
        assert network.distribution is not None
        self._distribution, self._index = network.distribution, context.index
        self._random = context.random("actions")
        self._noise = ColoredNoise(1.0, context.random("correlated"), self.pink_share)

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        assert isinstance(outputs, PolicyValueOutput)
        logits = outputs.logits.cpu().numpy()
        action = self._draw(logits, observations)
        env_action = self._distribution.env_action(action)
        kept = {"behaviour_logits": logits}
        if self.keep_value:
            kept["behaviour_value"] = outputs.value.cpu().numpy()
        return PolicyReply(action, env_action, kept, 0)

    def _draw(self, logits: np.ndarray, observations: dict[str, torch.Tensor]) -> np.ndarray:
        distribution = self._distribution
        if self.pink_share == 0.0 or not isinstance(distribution, Gaussian):
            return distribution.sample(logits, self._random)
        environments = environment_numbers(self._index, len(logits), observations)
        return distribution.draw(logits, self._noise.next(environments, distribution.d))


@dataclass(frozen=True)
class DrawOptions(Options):
    """How actions are drawn from a policy over Box actions."""

    noise_share: Annotated[Fraction, EXPLORATION_OPTIONS] = 0.0
    """Box actions: share of the environments whose noise is pink (correlated in time)."""


@dataclass(eq=False)
class NoisyActions(Selection):
    """Base of selections that add noise of the color `exponent` (0: white) to Box actions.

    Stores actions in [-1, 1]; the environment receives them scaled to its bounds. `keep_values`:
    also stores the critic's values of the action taken and of the policy's own, for priorities."""

    exponent: float
    keep_values: bool = True

    def open(self, network: Network, context: NodeContext) -> None:
        assert isinstance(network, BoundedActionNetwork)
        self._network = network
        self._noise = ColoredNoise(self.exponent, context.random("exploration"))

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        assert isinstance(outputs, ActionOutput | SACOutput)
        own = outputs.action
        rows, size = len(own), own[0].numel()
        noise = torch.from_numpy(self._noise.next(np.arange(rows), size))
        taken = self._taken(outputs, noise)
        both = np.zeros(2 * rows, np.float32)
        if self.keep_values:  # one pass of the critic over both
            twice = {name: torch.cat((entry, entry)) for name, entry in observations.items()}
            both = self._network.critic(twice, torch.cat((taken, own))).numpy()
        action, values = taken.numpy(), {VALUE_TAKEN: both[:rows], VALUE_BEST: both[rows:]}
        return PolicyReply(action, self._network.env_action(action), values, 0)

    def _taken(self, outputs: Outputs, noise: torch.Tensor) -> torch.Tensor:
        """Actions in [-1, 1] from standard normal `noise`."""
        raise NotImplementedError


@dataclass(eq=False)
class GaussianNoise(NoisyActions):
    """The deterministic policy's action plus Gaussian noise, clipped to the action's bounds.

    `sigma` is in units of half the action's range."""

    exponent: float = 0.0
    sigma: float = 0.1

    def _taken(self, outputs: Outputs, noise: torch.Tensor) -> torch.Tensor:
        assert isinstance(outputs, ActionOutput)
        own = outputs.action
        return (own + self.sigma * noise.view_as(own)).clamp_(-1.0, 1.0)


@dataclass(eq=False)
class SquashedDraws(NoisyActions):
    """Draws from soft actor-critic's policy."""

    exponent: float = 1.0

    def _taken(self, outputs: Outputs, noise: torch.Tensor) -> torch.Tensor:
        assert isinstance(outputs, SACOutput)
        assert isinstance(self._network, SACNetwork)
        return self._network.draw(outputs.params, noise)[0]


def colored_noise(
    steps: int, shape: tuple[int, ...], exponent: float, random: np.random.Generator
) -> np.ndarray:
    """Standard normal sequences [steps, *shape], power ~ 1 / frequency^exponent.

    0 is white, 1 pink, 2 a random walk: the waves of white noise are scaled."""
    frequencies = np.fft.rfftfreq(steps)
    # The mean gets the amplitude of the slowest wave, because its power would be infinite.
    frequencies[0] = frequencies[1] if steps > 1 else 1.0
    scale = frequencies ** (-exponent / 2.0)
    scale /= np.linalg.norm(np.fft.irfft(scale, n=steps))  # of the filter's response to one value
    waves = scale * np.fft.rfft(random.standard_normal((*shape, steps)))
    return np.moveaxis(np.fft.irfft(waves, n=steps), -1, 0).astype(np.float32)


class ColoredNoise:
    """Standard normal rows [d] for environments by number: colored for a `share` of them.

    Each environment has its own sequence, which continues over the ends of episodes and does not
    depend on the batch it is in."""

    def __init__(self, exponent: float, random: np.random.Generator, share: float = 1.0) -> None:
        self._exponent, self._random, self._share = exponent, random, share
        self._sequences: dict[int, np.ndarray] = {}
        self._rows: dict[int, int] = {}

    def next(self, environments: np.ndarray, size: int) -> np.ndarray:
        noise = self._random.standard_normal((len(environments), size), np.float32)
        if self._exponent:
            is_colored = (environments * self._share) % 1.0 < self._share
            for row in np.flatnonzero(is_colored):
                noise[row] = self._colored(int(environments[row]), size)
        return noise

    def _colored(self, environment: int, size: int) -> np.ndarray:
        row = self._rows.get(environment, _NOISE_STEPS)
        if row >= _NOISE_STEPS:
            noise = colored_noise(_NOISE_STEPS, (size,), self._exponent, self._random)
            self._sequences[environment], row = noise, 0
        self._rows[environment] = row + 1
        return self._sequences[environment][row]


_LONGEST_HOLD_STEPS = 100

Epsilon = Callable[[int, np.ndarray], "float | np.ndarray"]
"""Share of random actions, by env steps of this node and numbers of the environments."""


@dataclass(frozen=True)
class HeldOptions(Options):
    """How long a random action lasts."""

    hold_exponent: Annotated[NotNegative, EXPLORATION_OPTIONS] = 0.0
    """Random actions are held for n steps with a chance ~ n^-this (2 in the paper of Dabney et al.,
    2020), which reaches distant goals; 0: each lasts one step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0.0 < self.hold_exponent <= 1.0:
            raise ConfigurationError(
                f"hold_exponent is {self.hold_exponent}; use a number above 1, or 0 for none"
            )


@dataclass(frozen=True)
class EpsilonOptions(HeldOptions):
    """Exploration that decays."""

    epsilon_start: Annotated[Fraction, EXPLORATION_OPTIONS] = 1.0
    """Share of random actions at the start."""
    epsilon_end: Annotated[Fraction, EXPLORATION_OPTIONS] = 0.02
    """Share of random actions after the schedule."""
    epsilon_env_steps: Annotated[CountOrNone, EXPLORATION_OPTIONS] = 20_000
    """Environment steps, of all actors together, over which epsilon decreases."""

    def greedy(self, num_actors: int) -> EpsilonGreedy:
        """The selection of each actor, which counts its own share of all steps."""
        horizon = self.epsilon_env_steps / num_actors
        epsilon = AnnealedEpsilon(self.epsilon_start, (self.epsilon_end,), horizon)
        return EpsilonGreedy(epsilon, self.hold_exponent)


@dataclass(frozen=True)
class AnnealedEpsilon:
    """Decreases linearly over `env_steps` of each actor, to the end that the actor draws once."""

    start: float
    ends: tuple[float, ...]
    env_steps: float
    odds: tuple[float, ...] | None = None

    @staticmethod
    def drawn(options: AsynchronousQOptions, num_actors: int) -> AnnealedEpsilon:
        """The schedule of A3C's value-based workers, which count their own share of all steps."""
        horizon = options.epsilon_env_steps / num_actors
        return AnnealedEpsilon(1.0, options.epsilon_ends, horizon, options.epsilon_odds)

    def __call__(self, context: NodeContext) -> Epsilon:
        end = float(context.random("epsilon").choice(self.ends, p=self.odds))

        def epsilon(env_steps: int, environments: np.ndarray) -> float:
            if self.env_steps <= 0:
                return end
            return self.start + min(env_steps / self.env_steps, 1.0) * (end - self.start)

        return epsilon


@dataclass(frozen=True)
class LadderOptions(HeldOptions):
    """Exploration that differs between environments and is constant."""

    epsilon_base: Annotated[Fraction, EXPLORATION_OPTIONS] = 0.1
    """Share of random actions of the environment that explores most (dqn, r2d2)."""
    epsilon_alpha: Annotated[NotNegative, EXPLORATION_OPTIONS] = 7.0
    """The environment that explores least has epsilon_base to the power 1 + this (dqn, r2d2)."""

    def greedy(self, num_envs: int) -> EpsilonGreedy:
        """The selection of actors that have `num_envs` environments together."""
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
