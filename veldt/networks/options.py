# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about a network, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from veldt.errors import ConfigurationError
from veldt.options import ENCODERS
from veldt.options.checked import Bounds, Options

Width = Annotated[int, Bounds(1, 65_536)]


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Shape of a network; together with an EnvironmentSpec and a seed it fixes every weight."""

    encoder: str | Callable[..., object] = "auto"
    """auto, mlp, nature, resnet, small_conv, "module:function", or a callable that takes the
    EnvironmentSpec and returns an nn.Module. That module receives the observation tensor [N, ...]
    (a dict of them when there are several leaves) and returns features [N, F]."""
    hidden_sizes: tuple[Width, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh or relu, in MLPs."""
    image_activation: Literal["relu", "elu"] = "relu"
    """relu or elu, in plain convolutional encoders; the ResNet always uses relu."""
    image_precision: Literal["auto", "float32"] = "auto"
    """auto: convolutions in bfloat16 where that is faster (see encoders.is_faster_in_bfloat16)."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    recurrent_size: Width = 128
    last_action_and_reward: bool = False
    """Feed the previous action and reward to the core; observations then need LAST_ACTION,
    LAST_REWARD."""
    normalize_observations: bool = False
    normalize_images: bool = False
    normalize_returns: bool = False
    normalize_values: bool = False
    """policy_value: the head predicts values in units of the targets seen so far."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian"] = "auto"
    """For Box actions. auto: tanh_gaussian where the bounds are finite, else gaussian."""
    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        encoder = self.encoder
        if isinstance(encoder, str) and encoder not in ENCODERS and ":" not in encoder:
            raise ConfigurationError(
                f"network is unknown: '{encoder}'; use {', '.join(ENCODERS)} or 'module:function'"
            )
        if not self.hidden_sizes:
            raise ConfigurationError("hidden_sizes needs at least one layer")
