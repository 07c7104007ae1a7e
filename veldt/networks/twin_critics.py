# SPDX-License-Identifier: Apache-2.0
"""Networks of SAC and TD3: an actor for bounded Box actions and two critics that read the action
beside the observation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from veldt.networks.bounded import BoundedActionNetwork
from veldt.networks.distributions import TanhGaussian
from veldt.networks.encoders import make_encoder
from veldt.networks.layers import MLP, fused_linear
from veldt.networks.options import NetworkOptions
from veldt.types import EnvironmentSpec

Observations = dict[str, Tensor]


class SACOutput(NamedTuple):
    """The policy's mean action in [-1, 1], [..., *shape], and its parameters [..., 2 d]."""

    action: Tensor
    params: Tensor


class TD3Output(NamedTuple):
    """Noise-free actions in [-1, 1], [..., *shape]."""

    action: Tensor


@torch.no_grad()
def _begin_small(trunk: nn.Module) -> None:
    """Bring linear layers from the deviation that keeps the size of what passes through them,
    sqrt(2 / n), to that of a uniform within 1 / sqrt(n), with which the published SAC and TD3
    begin: critics with large opinions of their own take long to give them up."""
    for layer in trunk.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.mul_(math.sqrt(1.0 / 6.0))


class Critic(nn.Module):
    """Vectors and action go into the first layer together; images are convolved before."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        # Of the encoder's own MLP no layer is left: all of them come after the action.
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
    """What SAC and TD3 share. Actor and critics have separate trunks and one normaliser."""

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
        """The lower of both critics [N]: what a policy is improved by and priorities start from."""
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
    """A normal squashed by tanh, two critics and the temperature, which is learned as they are."""

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
