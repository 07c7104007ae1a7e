# SPDX-License-Identifier: Apache-2.0
"""Ways to turn a network's outputs into actions: draws from a policy, noise added to its action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import (
    ActionOutput,
    BoundedActionNetwork,
    Network,
    Outputs,
    PolicyValueOutput,
    SACNetwork,
    SACOutput,
)
from veldt.networks.distributions import Gaussian
from veldt.options.checked import Fraction, Options
from veldt.role import Part
from veldt.types import VALUE_BEST, VALUE_TAKEN, PolicyReply

ENVIRONMENT = "environment_index"
"""Passed to a Selection beside the observations: each row's number among all environments."""

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
    """Numbers of the rows' environments among those of all actors."""
    if ENVIRONMENT in observations:
        return observations[ENVIRONMENT].numpy()
    return actor * width + np.arange(width)


@dataclass(eq=False)
class SampleActions(Selection):
    """Draws from the policy's distribution and stores its parameters: the behaviour policy.

    `keep_value`: also stores the critic's value, for PPO's value clipping."""

    keep_value: bool = False

    def open(self, network: Network, context: NodeContext) -> None:
        assert network.distribution is not None
        self._distribution = network.distribution
        self._random = context.random("actions")

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
        return self._distribution.sample(logits, self._random)


@dataclass(frozen=True)
class DrawOptions(Options):
    """How actions are drawn from a policy over Box actions."""

    noise_share: Fraction = 0.0
    """Box actions: share of the environments whose noise is pink (correlated in time)."""


@dataclass(eq=False)
class CorrelatedDraws(SampleActions):
    """SampleActions with pink noise in a `share` of the environments.

    Noise that is independent from step to step averages out, and distant goals are not reached. If
    all environments had correlated noise, credit would go to wrong steps and fine control would
    suffer. Each single draw still has the policy's own distribution.
    """

    share: float = 0.0

    def open(self, network: Network, context: NodeContext) -> None:
        super().open(network, context)
        self._index = context.index
        self._noise = NoisePerEnvironment(self.share, context.random("correlated"))

    def _draw(self, logits: np.ndarray, observations: dict[str, torch.Tensor]) -> np.ndarray:
        distribution = self._distribution
        if self.share == 0.0 or not isinstance(distribution, Gaussian):
            return super()._draw(logits, observations)
        environments = environment_numbers(self._index, len(logits), observations)
        return distribution.draw(logits, self._noise.next(environments, distribution.d))


@dataclass(eq=False)
class GaussianNoise(Selection):
    """The deterministic policy's action plus Gaussian noise, clipped to the action's bounds.

    `sigma` is in units of half the action's range, `exponent` the noise's color (0: white). Each
    row stores the critic's values of the action taken and of the policy's own, for the error of an
    n-step window."""

    sigma: float
    exponent: float = 0.0

    def open(self, network: Network, context: NodeContext) -> None:
        assert isinstance(network, BoundedActionNetwork)
        self._network = network
        self._noise = NoiseStream(self.exponent, context.random("exploration"))

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        assert isinstance(outputs, ActionOutput)
        own = outputs.action
        noise = self._noise.next(tuple(own.shape)) * np.float32(self.sigma)
        taken = (own + torch.from_numpy(noise)).clamp_(-1.0, 1.0)
        values = _values_of_both(self._network, observations, taken, own)
        action = taken.numpy()
        return PolicyReply(action, self._network.env_action(action), values, 0)


@dataclass(eq=False)
class SquashedDraws(Selection):
    """Draws from soft actor-critic's policy, with noise of the color `exponent`.

    Stores actions in [-1, 1]; the environment receives them scaled to its bounds. `keep_values`:
    also stores the critics' values of the action taken and of the mean action, for priorities."""

    exponent: float = 1.0
    keep_values: bool = True

    def open(self, network: Network, context: NodeContext) -> None:
        assert isinstance(network, SACNetwork)
        self._network = network
        self._noise = NoiseStream(self.exponent, context.random("exploration"))

    def __call__(self, outputs: Outputs, observations: dict[str, torch.Tensor]) -> PolicyReply:
        assert isinstance(outputs, SACOutput)
        rows, width = outputs.params.shape
        noise = torch.from_numpy(self._noise.next((rows, width // 2)))
        taken, _ = self._network.draw(outputs.params, noise)
        values = dict.fromkeys((VALUE_TAKEN, VALUE_BEST), np.zeros(rows, np.float32))
        if self.keep_values:
            values = _values_of_both(self._network, observations, taken, outputs.action)
        action = taken.numpy()
        return PolicyReply(action, self._network.env_action(action), values, 0)


def _values_of_both(
    network: BoundedActionNetwork,
    observations: dict[str, torch.Tensor],
    taken: torch.Tensor,
    own: torch.Tensor,
) -> dict[str, np.ndarray]:
    """The critic's values of the action taken and of the policy's own, in one pass."""
    twice = {name: torch.cat((entry, entry)) for name, entry in observations.items()}
    both = network.critic(twice, torch.cat((taken, own))).numpy()
    return {VALUE_TAKEN: both[: len(taken)], VALUE_BEST: both[len(taken) :]}


def colored_noise(
    steps: int, shape: tuple[int, ...], exponent: float, random: np.random.Generator
) -> np.ndarray:
    """Standard normal sequences [steps, *shape], power ~ 1 / frequency^exponent.

    0 is white, 1 pink, 2 a walk. Timmer and Koenig 1995: random amplitudes of all frequencies,
    scaled, then one inverse Fourier transform.
    """
    frequencies = np.fft.rfftfreq(steps)
    # The mean gets the amplitude of the slowest wave, because its power would be infinite.
    frequencies[0] = frequencies[1] if len(frequencies) > 1 else 1.0
    scale = frequencies ** (-exponent / 2.0)
    amplitudes = random.standard_normal((2, *shape, len(frequencies))) * scale
    real, imaginary = amplitudes
    imaginary[..., 0] = 0.0  # the mean is real, as is the fastest wave of an even number of steps
    real[..., 0] *= np.sqrt(2.0)
    if steps % 2 == 0:
        imaginary[..., -1] = 0.0
        real[..., -1] *= np.sqrt(2.0)
    waves = np.fft.irfft(real + 1j * imaginary, n=steps, axis=-1)
    deviation = np.sqrt(_variance(scale, steps))
    return np.moveaxis(waves / deviation, -1, 0).astype(np.float32)


def _variance(scale: np.ndarray, steps: int) -> float:
    """Variance of each value before it is scaled to 1."""
    squares = 4.0 * np.square(scale)
    squares[0] /= 2.0
    if steps % 2 == 0:
        squares[-1] /= 2.0
    return float(squares.sum()) / steps**2


class NoiseStream:
    """Rows [E, d] of noise, cut from sequences of `steps` rows that episodes do not interrupt."""

    def __init__(self, exponent: float, random: np.random.Generator, steps: int = 1024) -> None:
        self._exponent, self._random, self._steps = exponent, random, steps
        self._noise, self._row = np.empty((0, 0), np.float32), 0

    def next(self, shape: tuple[int, ...]) -> np.ndarray:
        if self._exponent == 0.0:
            return self._random.standard_normal(shape, np.float32)
        if self._row >= len(self._noise):
            self._noise = colored_noise(self._steps, shape, self._exponent, self._random)
            self._row = 0
        self._row += 1
        return self._noise[self._row - 1]


class NoisePerEnvironment:
    """Rows [d] of noise for environments by their number: pink for a `share` of them, else white.

    An environment's sequence continues wherever and in whatever batch it is asked for."""

    def __init__(self, share: float, random: np.random.Generator, steps: int = 1024) -> None:
        self._share, self._random, self._steps = share, random, steps
        self._sequences: dict[int, np.ndarray] = {}
        self._rows: dict[int, int] = {}

    def is_pink(self, environments: np.ndarray) -> np.ndarray:
        return (environments * self._share) % 1.0 < self._share

    def next(self, environments: np.ndarray, size: int) -> np.ndarray:
        noise = self._random.standard_normal((len(environments), size), np.float32)
        for row in np.flatnonzero(self.is_pink(environments)):
            noise[row] = self._pink(int(environments[row]), size)
        return noise

    def _pink(self, environment: int, size: int) -> np.ndarray:
        row = self._rows.get(environment, self._steps)
        if row >= self._steps:
            self._sequences[environment] = colored_noise(self._steps, (size,), 1.0, self._random)
            row = 0
        self._rows[environment] = row + 1
        return self._sequences[environment][row]
