# SPDX-License-Identifier: Apache-2.0
"""Draws of a Gaussian policy that push one way for a while, in some of the environments.

A far goal is found by pushing on: noise that is independent from step to step averages out. Where
all environments push on, though, credit goes to the wrong step of a long push and fine control is
learned badly; so only a share of them does, as Ape-X's actors each have their own epsilon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.algorithms.colored_noise import NoisePerEnvironment
from veldt.context import NodeContext
from veldt.networks import Network
from veldt.networks.distributions import Gaussian
from veldt.options.checked import Fraction, Options
from veldt.roles.policies.selection import ENVIRONMENT, SampleActions


@dataclass(frozen=True)
class DrawOptions(Options):
    """How actions are drawn from a policy over Box actions."""

    noise_share: Fraction = 0.0
    """Box actions: share of the environments whose noise is pink, which pushes on for a while."""


@dataclass(eq=False)
class CorrelatedDraws(SampleActions):
    """SampleActions with pink noise in every environment whose number falls into `share`. Each
    single draw still has the policy's own distribution, so what is kept of it is as ever."""

    share: float = 0.0

    def open(self, network: Network, context: NodeContext) -> None:
        super().open(network, context)
        self._index = context.index
        self._noise = NoisePerEnvironment(self.share, context.random("correlated"))

    def _draw(self, logits: np.ndarray, observations: dict[str, torch.Tensor]) -> np.ndarray:
        distribution = self._distribution
        if self.share == 0.0 or not isinstance(distribution, Gaussian):
            return super()._draw(logits, observations)
        environments = self._index * len(logits) + np.arange(len(logits))
        if ENVIRONMENT in observations:
            environments = observations[ENVIRONMENT].numpy()
        return distribution.draw(logits, self._noise.next(environments, distribution.d))
