# SPDX-License-Identifier: Apache-2.0
"""Networks for bounded Box actions: an actor and critics that read its action (DPG, TD3, SAC)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.distributions import TanhGaussian, scale_to_bounds
from veldt.networks.encoders import last_layer, make_encoder
from veldt.networks.layers import MLP, fused_linear
from veldt.networks.network import Network
from veldt.networks.options import NetworkOptions
from veldt.types import EnvironmentSpec

Observations = dict[str, Tensor]


class DPGOutput(NamedTuple):
    """Noise-free actions in [-1, 1], [..., *shape]."""

    action: Tensor


class SACOutput(NamedTuple):
    """The policy's mean action in [-1, 1], [..., *shape], and its parameters [..., 2 d]."""

    action: Tensor
    params: Tensor


class TD3Output(NamedTuple):
    """Noise-free actions in [-1, 1], [..., *shape]."""

    action: Tensor


class BoundedActionNetwork(Network):
    """Base of networks whose actor outputs an action in [-1, 1], scaled to the bounds of a Box."""

    who: ClassVar[str]
    """Subject and verb of its error messages."""

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


class DPGNetwork(BoundedActionNetwork):
    """Actor and critic with separate trunks and one observation normalizer.

    The critic reads the action beside the features of its last but one layer.
    """

    who = "deterministic policy gradients are"

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec)
        size = len(spec.action.low)
        encoder = make_encoder(config, spec, generator)
        mean = fused_linear(encoder.num_features, ((size, 0.01),), generator)
        self.actor_part = nn.ModuleDict({"encoder": encoder, "head": mean})
        encoder = make_encoder(config, spec, generator, last_layer=False)
        width, activation = last_layer(config, spec)
        joint = MLP(encoder.num_features + size, (width,), activation, generator)
        value = fused_linear(width, ((1, 1.0),), generator)
        self.critic_part = nn.ModuleDict({"encoder": encoder, "joint": joint, "head": value})

    def actor(self, observations: dict[str, Tensor]) -> Tensor:
        """Observations [N, ...] -> actions [N, *shape] in [-1, 1]."""
        encoded = self.actor_part["encoder"](self._normalized(observations))
        raw = self.actor_part["head"](encoded)
        return torch.tanh(raw).reshape(-1, *self.spec.action.shape)

    def critic(self, observations: dict[str, Tensor], action: Tensor) -> Tensor:
        """Observations [N, ...], actions [N, *shape] in [-1, 1] -> q [N]."""
        features = self.critic_part["encoder"](self._normalized(observations))
        joined = torch.cat((features, action.reshape(features.shape[0], -1)), dim=1)
        return self.critic_part["head"](self.critic_part["joint"](joined)).squeeze(1)

    def _features(self, observations: dict[str, Tensor], first: Tensor) -> Tensor:
        return self.actor(observations)

    def _outputs(self, features: Tensor, observations: dict[str, Tensor]) -> DPGOutput:
        return DPGOutput(features)


@torch.no_grad()
def _begin_small(trunk: nn.Module) -> None:
    """Scale linear layers from deviation sqrt(2 / n) to that of a uniform within 1 / sqrt(n).

    The published SAC and TD3 begin with the latter: large first values take long to unlearn.
    """
    for layer in trunk.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.mul_(math.sqrt(1.0 / 6.0))


class Critic(nn.Module):
    """Reads vectors and action in its first layer; images are convolved before."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        # The encoder's own MLP has no layer: all of them come after the action.
        bare = replace(config, hidden_sizes=config.hidden_sizes[:1])
        self.encoder = make_encoder(bare, spec, generator, last_layer=False)
        num_inputs = self.encoder.num_features + len(spec.action.low)
        self.joint = MLP(num_inputs, config.hidden_sizes, config.activation, generator)
        self.head = fused_linear(self.joint.num_features, ((1, 1.0),), generator)

    def forward(self, observations: Observations, action: Tensor) -> Tensor:
        features = self.encoder(observations)
        joined = torch.cat((features, action.reshape(features.shape[0], -1)), dim=1)
        return self.head(self.joint(joined)).squeeze(1)


class TwinCriticNetwork(BoundedActionNetwork):
    """Base of SAC and TD3: actor and two critics with separate trunks and one normalizer."""

    who = "sac and td3 are"

    def __init__(
        self,
        config: NetworkOptions,
        spec: EnvironmentSpec,
        generator: torch.Generator | None,
        outputs_per_action: int,
    ) -> None:
        super().__init__(config, spec)
        encoder = make_encoder(config, spec, generator)
        size = outputs_per_action * len(spec.action.low)
        head = fused_linear(encoder.num_features, ((size, 0.01),), generator)
        self.actor_part = nn.ModuleDict({"encoder": encoder, "head": head})
        critics = [Critic(config, spec, generator) for _ in range(2)]
        self.critic_part = nn.ModuleList(critics)
        for trunk in (encoder, self.critic_part):
            _begin_small(trunk)

    def critics(self, observations: Observations, action: Tensor) -> Tensor:
        """Observations [N, ...], actions [N, *shape] in [-1, 1] -> q of both critics [2, N]."""
        observations = self._normalized(observations)
        return torch.stack([critic(observations, action) for critic in self.critic_part])

    def critic(self, observations: Observations, action: Tensor) -> Tensor:
        """The lower of both critics [N], for the policy's loss and first priorities."""
        return self.critics(observations, action).amin(0)

    def _features(self, observations: Observations, first: Tensor) -> Tensor:
        encoded = self.actor_part["encoder"](self._normalized(observations))
        return self.actor_part["head"](encoded)

    def _shaped(self, action: Tensor) -> Tensor:
        return action.reshape(-1, *self.spec.action.shape)


class Temperature(nn.Module):
    """The weight of the entropy, kept as its logarithm."""

    def __init__(self, initial: float = 1.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))


class SACNetwork(TwinCriticNetwork):
    """A normal squashed by tanh, two critics and a learned temperature."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec, generator, outputs_per_action=2)
        action = spec.action
        self.normal = TanhGaussian(action.low, action.high)
        self.temperature = Temperature()

    def policy(self, observations: Observations) -> Tensor:
        """Observations [N, ...] -> parameters of the policy [N, 2 d]."""
        return self._features(observations, torch.empty(0))

    def draw(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, *shape] in [-1, 1] that follow `params` through standard normal `noise`
        [N, d], and the logarithm of their density [N]."""
        mean, std = self.normal.moments(params)
        u = mean + std * noise
        return self._shaped(torch.tanh(u)), self.normal.log_prob(params, u)

    def _outputs(self, features: Tensor, observations: Observations) -> SACOutput:
        mean, _ = self.normal.moments(features)
        return SACOutput(self._shaped(torch.tanh(mean)), features)


class TD3Network(TwinCriticNetwork):
    """A deterministic actor and two critics."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec, generator, outputs_per_action=1)

    def actor(self, observations: Observations) -> Tensor:
        """Observations [N, ...] -> actions [N, *shape] in [-1, 1]."""
        raw = self._features(observations, torch.empty(0))
        return self._shaped(torch.tanh(raw))

    def _outputs(self, features: Tensor, observations: Observations) -> TD3Output:
        return TD3Output(self._shaped(torch.tanh(features)))
