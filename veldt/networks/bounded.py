# SPDX-License-Identifier: Apache-2.0
"""What networks whose actor gives the action itself share: bounded Box actions, no memory."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from veldt.networks.distributions import scale_to_bounds
from veldt.networks.network import Network
from veldt.networks.options import NetworkOptions
from veldt.types import EnvironmentSpec


class BoundedActionNetwork(Network):
    """Acts in [-1, 1], which is scaled to the bounds of a Box."""

    who: ClassVar[str]
    """Of whom a refusal speaks, with its verbs."""

    def __init__(self, config: NetworkOptions, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        action = spec.action
        if action.kind != "box" or not np.isfinite([*action.low, *action.high]).all():
            raise ValueError(
                f"{self.who} for bounded Box action spaces; {spec.id} has"
                f" {action.kind} {action.low} {action.high}. Use another architecture"
            )
        if config.recurrent != "none" or config.last_action_and_reward:
            raise ValueError(
                f"{self.who} for networks without memory; set recurrent none, no last action"
            )
        self._low = np.asarray(action.low, np.float32).reshape(action.shape)
        self._high = np.asarray(action.high, np.float32).reshape(action.shape)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return scale_to_bounds(action, self._low, self._high)

    def _normalized(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        return observations if self.normalizer is None else self.normalizer(observations)
