# SPDX-License-Identifier: Apache-2.0
"""Networks with a policy-and-value or a Q head, and `make_network` for all heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from veldt.networks.continuous import DPGNetwork, SACNetwork, TD3Network
from veldt.networks.distributions import (
    MASKED_LOGIT,
    Categorical,
    Distribution,
    make_distribution,
)
from veldt.networks.encoders import last_layer
from veldt.networks.layers import MLP, fused_linear
from veldt.networks.network import Network
from veldt.networks.normalizers import RunningMoments
from veldt.networks.options import NetworkOptions
from veldt.types import ACTION_MASK, EnvironmentSpec, Field

LEAST_VALUE_VARIANCE = 1e-4  # where rewards are rare, targets are nearly equal for a long time


class PolicyValueOutput(NamedTuple):
    """Distribution parameters [..., P], disallowed ones at MASKED_LOGIT, and values [...]."""

    logits: Tensor
    value: Tensor


class QOutput(NamedTuple):
    """Action values [..., A], not masked; choose through `masked_q`."""

    q_values: Tensor


class PolicyValueNetwork(Network):
    """Shared trunk; logits and value from one matrix product.

    With `normalize_values` the head's number is scaled by the moments of the value targets, so that
    callers see values in the unit of rewards.
    """

    distribution: Distribution

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec)
        self.distribution = make_distribution(spec.action, config.distribution)
        num_features = self._build_trunk(self.distribution, generator)
        self.num_params = self.distribution.num_params
        parts = ((self.num_params, 0.01), (1, 1.0))
        self.head = fused_linear(num_features, parts, generator)
        self.value_moments = RunningMoments(()) if config.normalize_values else None

    def value_scale(self) -> Tensor:
        """The deviation of value targets, by which errors are divided; 1 if not known."""
        if self.value_moments is None:
            return self.head.bias.new_ones(())
        return self.value_moments.variance.clamp(min=LEAST_VALUE_VARIANCE).sqrt()

    @torch.no_grad()
    def update_value_statistics(self, targets: Tensor, valid: Tensor) -> None:
        """Merge value targets [...] where `valid` [...].

        The head's last row is rescaled so that values do not change (PopArt, van Hasselt et al.
        2016).
        """
        if self.value_moments is None:
            return
        scale, mean = self.value_scale(), self.value_moments.mean.clone()
        self.value_moments.update(targets.reshape(-1), valid.reshape(-1))
        new_scale, new_mean = self.value_scale(), self.value_moments.mean
        self.head.weight[-1].mul_(scale / new_scale)
        self.head.bias[-1].mul_(scale).add_(mean - new_mean).div_(new_scale)

    def output_fields(self) -> dict[str, Field]:
        return {"behaviour_logits": Field((self.num_params,), "float32")}

    def _outputs(self, features: Tensor, observations: dict[str, Tensor]) -> PolicyValueOutput:
        logits, value = self.head(features).split_with_sizes((self.num_params, 1), 1)
        if ACTION_MASK in observations:
            logits = logits.masked_fill(~observations[ACTION_MASK], MASKED_LOGIT)
        value = value.squeeze(1)
        if self.value_moments is not None:
            value = torch.addcmul(self.value_moments.mean, value, self.value_scale())
        return PolicyValueOutput(logits, value)


class QNetwork(Network):
    """Action values, plain or dueling: q = v + a - mean(a).

    Each dueling stream has its own hidden layer in place of the encoder's last one.
    """

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec)
        if spec.action.kind != "discrete":
            raise ValueError(
                f"Q-learning needs a Discrete action space; {spec.id} has {spec.action.kind}."
                " Use a policy-gradient architecture"
            )
        actions = Categorical(spec.action.sizes[0])
        self.num_actions = actions.num_params
        own_streams = config.dueling and config.recurrent == "none"
        num_features = self._build_trunk(actions, generator, last_layer=not own_streams)
        if config.dueling:
            self.width, activation = last_layer(config, spec)
            self.streams = MLP(num_features, (2 * self.width,), activation, generator)
            self.advantage = fused_linear(self.width, ((self.num_actions, 1.0),), generator)
            self.value = fused_linear(self.width, ((1, 1.0),), generator)
        else:
            self.head = fused_linear(num_features, ((self.num_actions, 1.0),), generator)

    def output_fields(self) -> dict[str, Field]:
        """The values of the action taken and of the best one, all an n-step error needs."""
        return {"value_taken": Field((), "float32"), "value_best": Field((), "float32")}

    def _outputs(self, features: Tensor, observations: dict[str, Tensor]) -> QOutput:
        if not self.config.dueling:
            return QOutput(self.head(features))
        value, advantage = self.streams(features).split(self.width, dim=1)
        advantage = self.advantage(advantage)
        return QOutput(self.value(value) + advantage - advantage.mean(dim=1, keepdim=True))


_HEADS: dict[str, Any] = {
    "policy_value": PolicyValueNetwork,
    "q": QNetwork,
    "dpg": DPGNetwork,
    "sac": SACNetwork,
    "td3": TD3Network,
}


def make_network(
    config: NetworkOptions, spec: EnvironmentSpec, head: str, seed: int | None
) -> Network:
    """A network on the CPU whose weights are determined by `seed` alone; None leaves them blank.

    Args:
        config: Encoder, sizes, core and normalizations.
        spec: The environment's observations and actions.
        head: policy_value, q, dpg, sac or td3.
        seed: Of the weights; None: arbitrary weights, to be overwritten.
    """
    if head not in _HEADS:
        raise ValueError(f"unknown head '{head}'; use {', '.join(_HEADS)}")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    # A user's own module draws from the global stream, which is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed or 0)
        return _HEADS[head](config, spec, generator)


def masked_q(q_values: Tensor, observations: dict[str, Tensor]) -> Tensor:
    """Q-values to choose from: disallowed actions at MASKED_LOGIT where there is a mask."""
    if ACTION_MASK not in observations:
        return q_values
    return q_values.masked_fill(~observations[ACTION_MASK], MASKED_LOGIT)
