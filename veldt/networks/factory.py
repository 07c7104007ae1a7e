# SPDX-License-Identifier: Apache-2.0
"""A picklable description of a network, from which any process makes the same weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from veldt.networks.encoders import is_ready_made
from veldt.networks.first_weights import FirstWeights
from veldt.networks.flat_parameters import FlatParameters
from veldt.networks.heads import make_network
from veldt.networks.network import Network
from veldt.networks.options import NetworkOptions
from veldt.resources import require_bytes
from veldt.types import EnvironmentSpec

_MAY_BE_LARGE = 2048  # units of a layer
_COPIES = 16
"""Copies of the weights in the smallest run: boards, actor, learner, gradient, optimizer, disk."""


@dataclass(frozen=True)
class NetworkFactory:
    """Makes a network; every call of `make` gives the same weights.

    Args:
        config: Encoder, sizes, core and normalizations.
        spec: The environment's observations and actions.
        head: policy_value, q, dpg, sac or td3.
        seed: Of the weights.
        first: Trained weights that replace the drawn ones.
    """

    config: NetworkOptions
    spec: EnvironmentSpec
    head: str
    seed: int = 0
    first: FirstWeights | None = field(default=None, repr=False, compare=False)

    def require_memory(self) -> None:
        """Refuse networks that do not fit into memory, before any of it is allocated."""
        widths = (*self.config.hidden_sizes, self.config.recurrent_size)
        if max(widths) <= _MAY_BE_LARGE:
            return
        num_weights = self.size()
        require_bytes(
            4 * _COPIES * num_weights,
            f"a run with a network of {num_weights:,} weights",
            "use smaller hidden_sizes or recurrent_size in --network-options",
        )

    def make(self) -> Network:
        if self.first is None:
            return make_network(self.config, self.spec, self.head, self.seed)
        seed = None if self.first.part == "all" else self.seed
        network = make_network(self.config, self.spec, self.head, seed)
        self.first.fill(network, self.config, self.spec, self.head)
        return network

    def in_float32(self) -> NetworkFactory:
        """The same in float32, so that outputs do not depend on batch size and machine."""
        return replace(self, config=replace(self.config, image_precision="float32"))

    def blank(self) -> Network:
        """The same network with arbitrary weights, to be overwritten."""
        return make_network(self.config, self.spec, self.head, seed=None)

    def outline(self) -> Network:
        """The same network without memory for its weights, for its shapes.

        A user's own encoder is made with memory, because it is called once for its output's size.
        """
        if not is_ready_made(self.config.encoder):
            return self.blank()
        with torch.device("meta"):
            return self.blank()

    def _flat(self) -> FlatParameters:
        network = self.outline()
        return FlatParameters(network, next(network.parameters()).device)

    def initial_vector(self) -> np.ndarray:
        """All weights and statistics before the first update."""
        return FlatParameters(self.make()).numpy()

    def size(self) -> int:
        """Length of that vector."""
        return self._flat().size

    def num_trained(self) -> int:
        """How many entries of the vector an optimizer steps; running statistics follow them."""
        return self._flat().num_trained
