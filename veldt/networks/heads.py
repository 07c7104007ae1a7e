# SPDX-License-Identifier: Apache-2.0
"""Networks by their head: policy and value, Q-values, and actor with critics (DPG, SAC, TD3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.distributions import (
    MASKED_LOGIT,
    Categorical,
    Distribution,
    TanhGaussian,
    make_distribution,
    scale_to_bounds,
)
from veldt.networks.encoders import last_layer, make_encoder
from veldt.networks.layers import MLP, State, fused_linear
from veldt.networks.network import Network
from veldt.networks.normalizers import RunningMoments
from veldt.networks.options import NetworkOptions
from veldt.types import ACTION_MASK, POLICY, EnvironmentSpec, Field

LEAST_VALUE_VARIANCE = 1e-4  # where rewards are rare, targets are nearly equal for a long time


Observations = dict[str, Tensor]
Head = str | type[Network]
"""One of HEADS by name, or a class."""


class PolicyValueOutput(NamedTuple):
    """Distribution parameters [..., P], disallowed ones at MASKED_LOGIT, and values [...]."""

    logits: Tensor
    value: Tensor


class QOutput(NamedTuple):
    """Action values [..., A], not masked; choose through `masked_q`."""

    q_values: Tensor


class ActionOutput(NamedTuple):
    """Actions without noise in [-1, 1], [..., *shape]."""

    action: Tensor


class SACOutput(NamedTuple):
    """The policy's mean action in [-1, 1], [..., *shape], and its parameters [..., 2 d]."""

    action: Tensor
    params: Tensor


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

    @property
    def heads(self) -> list[nn.Linear]:
        """The layers whose last row is the value."""
        return [self.head]

    def value_scale(self) -> Tensor:
        """The deviation of value targets, by which errors are divided; 1 if not known."""
        if self.value_moments is None:
            return self.heads[0].bias.new_ones(())
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
        for head in self.heads:
            head.weight[-1].mul_(scale / new_scale)
            head.bias[-1].mul_(scale).add_(mean - new_mean).div_(new_scale)

    def output_fields(self) -> dict[str, Field]:
        return {"behaviour_logits": Field((self.num_params,), "float32")}

    def outputs(self, features: Tensor, observations: Observations) -> PolicyValueOutput:
        logits, value = self.head(features).split_with_sizes((self.num_params, 1), 1)
        if ACTION_MASK in observations:
            logits = logits.masked_fill(~observations[ACTION_MASK], MASKED_LOGIT)
        value = value.squeeze(1)
        if self.value_moments is not None:
            value = torch.addcmul(self.value_moments.mean, value, self.value_scale())
        return PolicyValueOutput(logits, value)


class PolicyGroup(PolicyValueNetwork):
    """Independent networks, one for each policy of a game's agents.

    Each computes all rows; a row has the outputs of the one that its entry `POLICY` names, so its
    gradient reaches no other. The scales of rewards and values are shared.
    """

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        Network.__init__(self, config, spec)
        leaves = tuple(leaf for leaf in spec.observation if leaf.name != POLICY)
        own_spec = replace(spec, observation=leaves, policies=())
        unscaled = replace(config, normalize_returns=False, normalize_values=False)
        names = dict.fromkeys(spec.policies)
        made = [PolicyValueNetwork(unscaled, own_spec, generator) for _ in names]
        self.policies: Any = nn.ModuleList(made)
        first = made[0]
        # Whether there are any, and of which shape, is the same for all.
        self.core, self.normalizer = first.core, first.normalizer
        self.distribution, self.num_params = first.distribution, first.num_params
        self.value_moments = RunningMoments(()) if config.normalize_values else None
        for each in made:
            each.value_moments = self.value_moments

    @property
    def heads(self) -> list[nn.Linear]:
        return [each.head for each in self.policies]

    def step(
        self, observations: Observations, state: State, first: Tensor
    ) -> tuple[PolicyValueOutput, State]:
        found = [each.step(observations, state, first) for each in self.policies]
        return self.picked(observations, found)

    def unroll(
        self, observations: Observations, state: State, first: Tensor
    ) -> tuple[PolicyValueOutput, State]:
        found = [each.unroll(observations, state, first) for each in self.policies]
        return self.picked(observations, found)

    def picked(
        self, observations: Observations, found: Sequence[tuple[Any, State]]
    ) -> tuple[PolicyValueOutput, State]:
        """Of the outputs and states of all networks, each row of its own policy."""
        outputs, state = found[0]
        for number, (other, after) in enumerate(found[1:], 1):
            choose = partial(_where, observations[POLICY] == number)
            outputs = PolicyValueOutput(*map(choose, other, outputs))
            state = tuple(map(choose, after, state))
        return outputs, state

    def update_statistics(self, observations: Observations, valid: Tensor) -> None:
        for number, each in enumerate(self.policies):
            each.update_statistics(observations, valid & (observations[POLICY] == number))


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.reshape(*rows.shape, *[1] * (new.dim() - rows.dim())), new, old)


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

    def outputs(self, features: Tensor, observations: Observations) -> QOutput:
        if not self.config.dueling:
            return QOutput(self.head(features))
        value, advantage = self.streams(features).split(self.width, dim=1)
        advantage = self.advantage(advantage)
        return QOutput(self.value(value) + advantage - advantage.mean(dim=1, keepdim=True))


class BoundedActionNetwork(Network):
    """Base of DPG, SAC and TD3: an actor whose action in [-1, 1] is scaled to a Box's bounds.

    Actor and critics have separate trunks and share one observation normalizer.
    """

    def __init__(
        self,
        config: NetworkOptions,
        spec: EnvironmentSpec,
        generator: torch.Generator | None,
        outputs_per_action: int = 1,
    ) -> None:
        super().__init__(config, spec)
        action = spec.action
        if action.kind != "box" or not np.isfinite([*action.low, *action.high]).all():
            raise ValueError(
                f"dpg, sac and td3 are for bounded Box action spaces; {spec.id} has"
                f" {action.kind} {action.low} {action.high}. Use another architecture"
            )
        if config.recurrent != "none" or config.last_action_and_reward:
            raise ValueError(
                "dpg, sac and td3 are for networks without memory; set recurrent none, no last"
                " action"
            )
        self._low = np.asarray(action.low, np.float32).reshape(action.shape)
        self._high = np.asarray(action.high, np.float32).reshape(action.shape)
        encoder = make_encoder(config, spec, generator)
        size = outputs_per_action * len(action.low)
        head = fused_linear(encoder.num_features, ((size, 0.01),), generator)
        self.actor_part = nn.ModuleDict({"encoder": encoder, "head": head})

    def actor(self, observations: Observations) -> Tensor:
        """Observations [N, ...] -> actions [N, *shape] in [-1, 1]."""
        return self._squashed(self._features(observations, torch.empty(0)))

    def critic(self, observations: Observations, action: Tensor) -> Tensor:
        """Observations [N, ...], actions [N, *shape] in [-1, 1] -> q [N]."""
        raise NotImplementedError

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return scale_to_bounds(action, self._low, self._high)

    def _features(self, observations: Observations, first: Tensor) -> Tensor:
        encoded = self.actor_part["encoder"](self.normalized(observations))
        return self.actor_part["head"](encoded)

    def _squashed(self, raw: Tensor) -> Tensor:
        return torch.tanh(raw).reshape(-1, *self.spec.action.shape)

    def outputs(self, features: Tensor, observations: Observations) -> Any:
        return ActionOutput(self._squashed(features))


class Critic(nn.Module):
    """Reads the action beside the features of an encoder, in layers of `sizes`."""

    def __init__(
        self,
        config: NetworkOptions,
        spec: EnvironmentSpec,
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(config, spec, generator, last_layer=False)
        num_inputs = self.encoder.num_features + len(spec.action.low)
        self.joint = MLP(num_inputs, sizes, activation, generator)
        self.head = fused_linear(self.joint.num_features, ((1, 1.0),), generator)

    def forward(self, observations: Observations, action: Tensor) -> Tensor:
        features = self.encoder(observations)
        joined = torch.cat((features, action.reshape(features.shape[0], -1)), dim=1)
        return self.head(self.joint(joined)).squeeze(1)


class DPGNetwork(BoundedActionNetwork):
    """An actor and a critic that reads the action beside the features of its last but one layer."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec, generator)
        width, activation = last_layer(config, spec)
        self.critic_part = Critic(config, spec, (width,), activation, generator)

    def critic(self, observations: Observations, action: Tensor) -> Tensor:
        return self.critic_part(self.normalized(observations), action)


class TwinCriticNetwork(BoundedActionNetwork):
    """Base of SAC and TD3: an actor and two critics.

    Linear layers begin with the deviation of the published networks, that of a uniform within
    1 / sqrt(n) instead of sqrt(2 / n): large first values take long to unlearn.
    """

    def __init__(
        self,
        config: NetworkOptions,
        spec: EnvironmentSpec,
        generator: torch.Generator | None,
        outputs_per_action: int = 1,
    ) -> None:
        super().__init__(config, spec, generator, outputs_per_action)
        # The encoder's own MLP has no layer: all of them come after the action.
        bare = replace(config, hidden_sizes=config.hidden_sizes[:1])
        sizes, activation = config.hidden_sizes, config.activation
        self.critic_part = nn.ModuleList(
            Critic(bare, spec, sizes, activation, generator) for _ in range(2)
        )
        for trunk in (self.actor_part["encoder"], self.critic_part):
            for layer in trunk.modules():
                if isinstance(layer, nn.Linear):
                    layer.weight.data.mul_(math.sqrt(1.0 / 6.0))

    def critics(self, observations: Observations, action: Tensor) -> Tensor:
        """Observations [N, ...], actions [N, *shape] in [-1, 1] -> q of both critics [2, N]."""
        observations = self.normalized(observations)
        return torch.stack([critic(observations, action) for critic in self.critic_part])

    def critic(self, observations: Observations, action: Tensor) -> Tensor:
        """The lower of both critics [N], for first priorities."""
        return self.critics(observations, action).amin(0)


class Temperature(nn.Module):
    """The weight of the entropy, kept as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))


class SACNetwork(TwinCriticNetwork):
    """A normal squashed by tanh, two critics and a learned temperature."""

    def __init__(
        self, config: NetworkOptions, spec: EnvironmentSpec, generator: torch.Generator | None
    ) -> None:
        super().__init__(config, spec, generator, outputs_per_action=2)
        self.normal = TanhGaussian(spec.action.low, spec.action.high)
        self.temperature = Temperature()

    def policy(self, observations: Observations) -> Tensor:
        """Observations [N, ...] -> parameters of the policy [N, 2 d]."""
        return self._features(observations, torch.empty(0))

    def draw(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, *shape] in [-1, 1] and the logarithm of their density [N].

        Args:
            params: Of the policy, [N, 2 d].
            noise: Standard normal numbers [N, d].
        """
        mean, std = self.normal.moments(params)
        u = mean + std * noise
        return self._squashed(u), self.normal.log_prob(params, u)

    def outputs(self, features: Tensor, observations: Observations) -> SACOutput:
        mean, _ = self.normal.moments(features)
        return SACOutput(self._squashed(mean), features)


class TD3Network(TwinCriticNetwork):
    """A deterministic actor and two critics."""


HEADS: dict[str, Any] = {
    "policy_value": PolicyValueNetwork,
    "q": QNetwork,
    "dpg": DPGNetwork,
    "sac": SACNetwork,
    "td3": TD3Network,
}


def make_network(
    config: NetworkOptions, spec: EnvironmentSpec, head: Head, seed: int | None
) -> Network:
    """A network on the CPU whose weights are determined by `seed` alone; None leaves them blank.

    Args:
        config: Encoder, sizes, core and normalizations.
        spec: The environment's observations and actions.
        head: policy_value, q, dpg, sac or td3, or a class of your own.
        seed: Of the weights; None: arbitrary weights, to be overwritten.
    """
    if isinstance(head, str) and head not in HEADS:
        raise ValueError(f"unknown head '{head}'; use {', '.join(HEADS)}")
    kind: Any = HEADS[head] if isinstance(head, str) else head
    if spec.policies:
        if kind is not PolicyValueNetwork:
            raise ValueError("policies need a network of policy and value; train ppo or impala")
        kind = PolicyGroup
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    # A user's own module draws from the global stream, which is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed or 0)
        return kind(config, spec, generator)


def masked_q(q_values: Tensor, observations: Observations) -> Tensor:
    """Q-values to choose from: disallowed actions at MASKED_LOGIT where there is a mask."""
    if ACTION_MASK not in observations:
        return q_values
    return q_values.masked_fill(~observations[ACTION_MASK], MASKED_LOGIT)
