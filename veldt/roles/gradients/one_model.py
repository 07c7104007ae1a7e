# SPDX-License-Identifier: Apache-2.0
"""One model for all: predictors and trainers of a process share weights instead of copying them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network
from veldt.roles.gradients.hogwild import Hogwild, HogwildConfig


def model_memory(
    network: Network, device: str, memory: Sequence[np.ndarray] | None
) -> tuple[FlatParameters, np.ndarray | None]:
    """The network's parameters: its own, or views of the shared [weights, updates]."""
    if memory is None:
        return FlatParameters(network, device), None
    weights, updates = memory[0], memory[1]
    present = weights.copy()  # placing the network there overwrites them with its fresh weights
    flat = FlatParameters(network, device, memory=torch.from_numpy(weights))
    weights[:] = present
    return flat, updates


class OneModelConfig(HogwildConfig):
    """A trainer of the one model: its gradients go where its weights are."""

    def __call__(
        self, context: NodeContext, flat: FlatParameters, port: Sequence[np.ndarray]
    ) -> OneModel:
        return OneModel(context, flat, port, self)


class OneModel(Hogwild):
    """Steps the shared model in place. It also changes between two updates of this trainer."""

    def begin(self, version: int) -> int | None:
        return self.newest_version(version)
