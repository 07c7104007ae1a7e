# SPDX-License-Identifier: Apache-2.0
"""Describes a network once, so that any process can make it with the same first weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from veldt.networks.first_weights import FirstWeights
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import make_network
from veldt.networks.network import Network
from veldt.networks.options import NetworkOptions
from veldt.types import EnvironmentSpec


@dataclass(frozen=True)
class NetworkFactory:
    """Picklable; every call of `make` gives the same weights."""

    config: NetworkOptions
    spec: EnvironmentSpec
    head: str
    """ "policy_value", "q" or "dpg"."""
    seed: int = 0
    first: FirstWeights | None = field(default=None, repr=False, compare=False)
    """What is not drawn from the seed, because it was trained before."""

    def make(self) -> Network:
        if self.first is None:
            return make_network(self.config, self.spec, self.head, self.seed)
        seed = None if self.first.part == "all" else self.seed
        network = make_network(self.config, self.spec, self.head, seed)
        self.first.fill(network, self.config, self.spec, self.head)
        return network

    def blank(self) -> Network:
        """The same network with arbitrary weights: for those who take them from a board, or only
        ask for its shapes. The first weights of a large network take a minute to draw."""
        return make_network(self.config, self.spec, self.head, seed=None)

    def initial_vector(self) -> np.ndarray:
        """All weights and statistics before the first update."""
        return FlatParameters(self.make()).numpy()

    def size(self) -> int:
        """Length of that vector."""
        return FlatParameters(self.blank()).size

    def num_trained(self) -> int:
        """How many entries of the vector an optimizer steps; running statistics follow them."""
        return FlatParameters(self.blank()).num_trained
