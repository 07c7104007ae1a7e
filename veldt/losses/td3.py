# SPDX-License-Identifier: Apache-2.0
"""TD3 from replayed transitions: clipped double Q, smoothed target actions, a delayed actor.

Fujimoto et al. 2018, Algorithm 1: clipped double Q-learning is equation 10, target policy smoothing
equation 14. The actor's loss is `dpg.actor_loss` with the first critic and no bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from veldt.families import FEW_NUMBERS, num_numbers
from veldt.losses import Loss, Tensors, TransitionOptions
from veldt.losses.dpg import actor_loss
from veldt.losses.q_learning import QLoss, squared, weighted_mean
from veldt.losses.target_network import TargetNetwork, WithNoisyTarget
from veldt.networks import Network, NetworkOptions, TD3Network
from veldt.options.checked import Bounds, Count, NotNegative
from veldt.options.groups import LOSS_OPTIONS
from veldt.role import Arrays
from veldt.types import EnvironmentSpec


@torch.no_grad()
def smoothed_action(action: Tensor, noise: Tensor, sigma: float, bound: float) -> Tensor:
    """clip(a + clip(sigma noise, -bound, bound), -1, 1): similar actions get similar values.

    `action` [B, ...] in [-1, 1] and standard normal `noise` of the same shape.
    """
    return (action + (sigma * noise).clamp(-bound, bound)).clamp(-1.0, 1.0)


@torch.no_grad()
def clipped_double_targets(reward: Tensor, discount: Tensor, next_qs: Tensor) -> Tensor:
    """y = G + discount min_i q_i(S', a'), [B], from the target critics' `next_qs` [2, B].

    `reward` is sum_{k<m} gamma^k r; `discount` is gamma^m, or 0 if it ends in a termination.
    """
    return torch.addcmul(reward, discount, next_qs.amin(0))


def twin_critic_loss(
    qs: Tensor, targets: Tensor, importance_weights: Tensor | None = None
) -> QLoss:
    """Mean of w sum_i (y - q_i(s, a))^2 / 2 over both critics' `qs` [2, B]; the rest is [B].

    `td` is the mean over the critics of |y - q_i|, what a priority is made of.
    """
    td = targets.detach() - qs
    loss = weighted_mean(squared(td).sum(0), importance_weights)
    return QLoss(loss, td.detach().abs().mean(0))


@dataclass(frozen=True)
class TwinCriticOptions(TransitionOptions):
    """Options that SAC and TD3 share."""

    soft_update: Annotated[float, Bounds(0, 1, above=True)] = 0.005
    """Share of the new weights that the target network takes over with each update."""
    critic_sizes: tuple[Annotated[int, Bounds(1, 65_536)], ...] = ()
    """Layer widths of actor and critics; none: 64,64 where observation and action have 10 numbers
    or fewer together, else 256,256."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        """Small tasks do not need the published width, which takes many times as long."""
        is_wide = num_numbers(spec) > FEW_NUMBERS
        sizes = self.critic_sizes or ((256, 256) if is_wide else (64, 64))
        shape = super().network_options(shape, spec)
        return replace(shape, hidden_sizes=sizes, activation="relu")


@dataclass(frozen=True)
class TD3Options(TwinCriticOptions):
    """TD3's own options."""

    actor_period_updates: Annotated[Count, LOSS_OPTIONS] = 2
    """Updates of the critics for each of the actor and the target."""
    smoothing_sigma: Annotated[NotNegative, LOSS_OPTIONS] = 0.2
    """Deviation of the noise on target actions, in units of half their range."""
    smoothing_bound: Annotated[NotNegative, LOSS_OPTIONS] = 0.5
    """Largest noise on target actions."""


@dataclass(eq=False)
class TD3(WithNoisyTarget):
    """Loss of critics and, every `actor_period_updates`, of the actor over transitions [B].

    In between the actor's gradient is zero, and its own optimizer takes no step: with momentum,
    a step by a zero gradient still moves the weights.
    """

    options: TD3Options

    def open(self, network: Network) -> None:
        assert isinstance(network, TD3Network)
        super().open(network)
        self._network: TD3Network = network
        options = self.options
        self._target = TargetNetwork(network, options.actor_period_updates, options.soft_update)
        self._version = 0

    def __call__(self, batch: Tensors) -> Loss:
        network = self._network
        now, later = self._ends(batch)
        targets = self._targets(batch, later)
        critic = twin_critic_loss(
            network.critics(now, batch["action"]), targets, batch.get("weight")
        )
        total = critic.loss
        if self._version % self.options.actor_period_updates == 0:
            action = network.actor(now)
            total = total + actor_loss(action, network.critics(now, action)[0], bound=None)
        metrics = {"td": critic.td.mean(), "value": targets.mean(), "critic": critic.loss}
        return Loss(total, metrics, priorities=critic.td)

    def after_update(self, version: int) -> None:
        super().after_update(version)
        self._version = version

    def state(self) -> Arrays:
        return {**super().state(), "version": np.array(self._version)}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self._version = int(state["version"])

    @torch.no_grad()
    def _targets(self, batch: Tensors, later: Tensors) -> Tensor:
        target, options = self._target.network, self.options
        action = target.actor(later)
        noise = self._normal(*action.shape)
        action = smoothed_action(action, noise, options.smoothing_sigma, options.smoothing_bound)
        reward = batch["reward"] * self._network.reward_scale()
        return clipped_double_targets(reward, batch["discount"], target.critics(later, action))
