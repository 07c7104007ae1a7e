# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about a network, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from veldt.errors import ConfigurationError
from veldt.options import ENCODERS, NetworkDetails


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(NetworkDetails):
    """Shape of a network; together with an EnvironmentSpec and a seed it fixes every weight."""

    encoder: str | Callable[..., object] = "auto"
    """auto, mlp, nature, resnet, small_conv, "module:function", or a callable that takes the
    EnvironmentSpec and returns an nn.Module. That module receives the observation tensor [N, ...]
    (a dict of them when there are several leaves) and returns features [N, F]."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    normalize_observations: bool = False
    normalize_images: bool = False
    normalize_returns: bool = False
    normalize_values: bool = False
    """policy_value: the head predicts values in units of the targets seen so far."""
    layer_norm: bool = False
    """Normalize each layer before its activation, except in the ResNet and in own encoders."""
    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        encoder = self.encoder
        if isinstance(encoder, str) and encoder not in ENCODERS and ":" not in encoder:
            raise ConfigurationError(
                f"network is unknown: '{encoder}'; use {', '.join(ENCODERS)} or 'module:function'"
            )
