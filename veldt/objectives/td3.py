# SPDX-License-Identifier: Apache-2.0
"""TD3 from replayed transitions: clipped double Q, smoothed target actions, a delayed actor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veldt.algorithms.dpg import actor_loss
from veldt.algorithms.td3 import clipped_double_targets, smoothed_action, twin_critic_loss
from veldt.networks import Network, TD3Network
from veldt.objectives import Loss, Tensors
from veldt.objectives.sac import TwinCriticOptions
from veldt.objectives.target_network import SoftTarget, WithNoisyTarget
from veldt.objectives.update_noise import UpdateNoise


@dataclass(eq=False)
class TD3(WithNoisyTarget):
    """Loss of critics and, every `actor_period_updates`, of the actor over transitions [B].

    In between the actor's gradient is zero, and an optimizer of its own must leave it alone: with
    momentum, a step by a zero gradient still moves."""

    options: TwinCriticOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, TD3Network)
        self._network: TD3Network = network
        options = self.options
        self._target = SoftTarget(network, options.soft_update, options.actor_period_updates)
        self._noise = UpdateNoise()
        self._leaves = [leaf.name for leaf in network.spec.observation]

    def __call__(self, batch: Tensors) -> Loss:
        network = self._network
        now = {name: batch[name] for name in self._leaves}
        later = {name: batch["next_" + name] for name in self._leaves}
        targets = self._targets(batch, later)
        critic = twin_critic_loss(
            network.critics(now, batch["action"]), targets, batch.get("weight")
        )
        total = critic.loss
        if self._noise.version % self.options.actor_period_updates == 0:
            action = network.actor(now)
            total = total + actor_loss(action, network.critics(now, action)[0], bound=None)
        metrics = {"td": critic.td.mean(), "value": targets.mean(), "critic": critic.loss}
        return Loss(total, metrics, priorities=critic.td)

    @torch.no_grad()
    def _targets(self, batch: Tensors, later: Tensors) -> Tensor:
        target, options = self._target.network, self.options
        action = target.actor(later)
        noise = self._noise.normal(tuple(action.shape), action)
        action = smoothed_action(action, noise, options.smoothing_sigma, options.smoothing_bound)
        reward = batch["reward"] * self._network.reward_scale()
        return clipped_double_targets(reward, batch["discount"], target.critics(later, action))
