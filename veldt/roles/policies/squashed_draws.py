# SPDX-License-Identifier: Apache-2.0
"""Acting with soft actor-critic: a draw from the policy, with noise that remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from veldt.algorithms.colored_noise import NoiseStream
from veldt.context import NodeContext
from veldt.networks import Network, SACNetwork
from veldt.types import VALUE_BEST, VALUE_TAKEN, PolicyReply


class SquashedDraws:
    """Stores actions in [-1, 1]; the environment receives them scaled to its bounds.

    `keep_values`: also the critics' values of the action taken and of the mean action, from which
    the error of an n-step window follows; without priorities nobody needs them."""

    def __init__(
        self,
        network: Network,
        context: NodeContext,
        noise_exponent: float = 1.0,
        keep_values: bool = True,
    ) -> None:
        assert isinstance(network, SACNetwork)
        self._network, self._keep_values = network, keep_values
        self._noise = NoiseStream(noise_exponent, context.random("exploration"))

    def __call__(self, outputs: Any, observations: dict[str, torch.Tensor]) -> PolicyReply:
        rows, width = outputs.params.shape
        noise = torch.from_numpy(self._noise.next((rows, width // 2)))
        taken, _ = self._network.draw(outputs.params, noise)
        values = np.zeros((2, rows), np.float32)
        if self._keep_values:
            twice = {name: torch.cat((entry, entry)) for name, entry in observations.items()}
            both = self._network.critic(twice, torch.cat((taken, outputs.action)))
            values = both.reshape(2, rows).numpy()
        action = taken.numpy()
        kept = {VALUE_TAKEN: values[0], VALUE_BEST: values[1]}
        return PolicyReply(action, self._network.env_action(action), kept, 0)
