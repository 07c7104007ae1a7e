# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic from replayed transitions, with twin critics and a learned temperature.

Haarnoja et al. 2018 (Soft Actor-Critic Algorithms and Applications): targets are equations 3 and 5,
the actor's loss equation 9, the temperature's equation 18; critics and their loss are TD3's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from veldt.losses import Loss, Tensors
from veldt.losses.dpg import actor_loss as deterministic_loss
from veldt.losses.target_network import TargetNetwork, WithNoisyTarget
from veldt.losses.td3 import TwinCriticOptions, twin_critic_loss
from veldt.networks import Network, SACNetwork
from veldt.options.groups import LOSS_OPTIONS


@torch.no_grad()
def soft_targets(
    reward: Tensor, discount: Tensor, next_qs: Tensor, next_log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """y = G + discount (min_i q_i(S', a') - temperature log pi(a' | S')), [B], a' ~ pi(S').

    `next_qs` [2, B] are the target critics'. With n-step rewards only the last state's entropy is
    counted: that of the steps between was the behaviour's, not the policy's.
    """
    return torch.addcmul(reward, discount, next_qs.amin(0) - temperature * next_log_prob)


def actor_loss(action: Tensor, qs: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Mean of temperature log pi(a | s) - min_i q_i(s, a) for a = tanh(mean + std noise).

    `action` [B, ...] and `qs` [2, B] = critics(s, action) must be in one graph; the critics' part
    of it is used up here and their weights receive no gradient.
    """
    value = deterministic_loss(action, qs.amin(0), bound=None)
    return (temperature.detach() * log_prob).mean() + value


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """-log temperature (log pi(a | s) + target entropy): it rises while the entropy is too low.

    Learning the logarithm keeps the temperature positive; the gradient's sign is the same.
    """
    surplus = (log_prob + target_entropy).detach()
    return (-log_temperature * surplus).mean()


@dataclass(frozen=True)
class SACOptions(TwinCriticOptions):
    """SAC's own options."""

    target_entropy: Annotated[float | None, LOSS_OPTIONS] = None
    """Entropy that the temperature is learned for; none: -1 per action dimension."""


@dataclass(eq=False)
class SAC(WithNoisyTarget):
    """Loss of critics, actor and temperature over a batch of transitions [B]; owns the target.

    The three touch separate weights, so that one optimizer may step them all."""

    options: SACOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, SACNetwork)
        super().open(network)
        self._network: SACNetwork = network
        self._target = TargetNetwork(network, tau=self.options.soft_update)
        self._dimensions = len(network.spec.action.low)
        given = self.options.target_entropy
        self._target_entropy = -float(self._dimensions) if given is None else given

    def __call__(self, batch: Tensors) -> Loss:
        network = self._network
        now, later = self._ends(batch)
        noise = self._normal(2, len(batch["reward"]), self._dimensions)
        temperature = network.temperature.log.exp()
        targets = self._targets(batch, later, noise[0], temperature)
        critic = twin_critic_loss(
            network.critics(now, batch["action"]), targets, batch.get("weight")
        )
        action, log_prob = network.draw(network.policy(now), noise[1])
        actor = actor_loss(action, network.critics(now, action), log_prob, temperature)
        heat = temperature_loss(network.temperature.log, log_prob, self._target_entropy)
        metrics = {
            "td": critic.td.mean(),
            "value": targets.mean(),
            "critic": critic.loss,
            "entropy": -log_prob.detach().mean(),
            "temperature": temperature.detach(),
        }
        return Loss(critic.loss + actor + heat, metrics, priorities=critic.td)

    @torch.no_grad()
    def _targets(
        self, batch: Tensors, later: Tensors, noise: Tensor, temperature: Tensor
    ) -> Tensor:
        network = self._network
        action, log_prob = network.draw(network.policy(later), noise)
        qs = self._target.network.critics(later, action)
        reward = batch["reward"] * network.reward_scale()
        return soft_targets(reward, batch["discount"], qs, log_prob, temperature)
