# SPDX-License-Identifier: Apache-2.0
"""Options that all losses share, and what a loss needs of its network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from veldt.networks.options import NetworkOptions
from veldt.options.checked import Count, Fraction, Options
from veldt.types import EnvironmentSpec


@dataclass(frozen=True)
class LossOptions(Options):
    """The discount, and which inputs of the network are normalised."""

    gamma: Fraction = 0.99
    """Discount per environment step."""
    normalize_observations: bool = False
    """Scale vectors by statistics shared by all actors."""
    normalize_images: bool = False
    """Scale each pixel by statistics shared by all actors."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        """`shape` with what this loss needs of a network for `spec`."""
        return replace(
            shape,
            normalize_observations=self.normalize_observations,
            normalize_images=self.normalize_images,
        )


@dataclass(frozen=True)
class TransitionOptions(LossOptions):
    """Losses over transitions of a replay, which cuts them by `n_step` and `gamma`."""

    n_step: Count = 1
    """Rewards summed before the target bootstraps."""
