# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about a network, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENCODERS = ("auto", "mlp", "nature", "resnet", "small_conv")
_CHOICES = {
    "activation": ("tanh", "relu"),
    "recurrent": ("none", "lstm", "gru"),
    "distribution": ("auto", "gaussian", "tanh_gaussian"),
}


@dataclass(frozen=True)
class NetworkConfig:
    """Shape of a network; together with an EnvironmentSpec and a seed it fixes every weight."""

    encoder: str | Callable[..., Any] = "auto"
    """auto, mlp, nature, resnet, small_conv, "module:function", or a callable that takes the
    EnvironmentSpec and returns an nn.Module. That module receives the observation tensor [N, ...]
    (a dict of them when there are several leaves) and returns features [N, F]."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    """tanh or relu, in MLPs; convolutional encoders always use relu."""
    recurrent: str = "none"
    recurrent_size: int = 128
    last_action_and_reward: bool = False
    """Feed the previous action and reward to the core; observations then need LAST_ACTION,
    LAST_REWARD."""
    normalize_observations: bool = False
    normalize_returns: bool = False
    normalize_values: bool = False
    """policy_value: the head predicts values in units of the targets seen so far."""
    distribution: str = "auto"
    """For Box actions. auto: tanh_gaussian where the bounds are finite, else gaussian."""
    dueling: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"unknown {name} '{getattr(self, name)}'; use {', '.join(choices)}"
                )
        known = callable(self.encoder) or self.encoder in ENCODERS or ":" in self.encoder
        if not known:
            raise ValueError(
                f"unknown network '{self.encoder}'; use {', '.join(ENCODERS)} or 'module:function'"
            )
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer of one unit or more")
        if self.recurrent_size < 1:
            raise ValueError("recurrent_size must be 1 or more")
