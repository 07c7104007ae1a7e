# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic from replayed transitions, with automatic entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from veldt.algorithms.sac import actor_loss, soft_targets, temperature_loss
from veldt.algorithms.td3 import twin_critic_loss
from veldt.networks import Network, SACNetwork
from veldt.objectives import Loss, Tensors
from veldt.objectives.target_network import SoftTarget, WithNoisyTarget
from veldt.objectives.update_noise import UpdateNoise
from veldt.options.checked import Bounds, Count, NotNegative, Options


@dataclass(frozen=True)
class TwinCriticOptions(Options):
    """What SAC and TD3 need beside replay and optimizer."""

    soft_update: Annotated[float, Bounds(0, 1, above=True)] = 0.005
    """sac, td3: share of the new weights that the target takes over with each update."""
    target_entropy: float | None = None
    """sac: entropy that the temperature is learned for; none: -1 per action dimension."""
    actor_period_updates: Count = 2
    """td3: updates of the critics for each of the actor and the target."""
    smoothing_sigma: NotNegative = 0.2
    """td3: deviation of the noise on target actions, in units of half their range."""
    smoothing_bound: NotNegative = 0.5
    """td3: largest noise on target actions."""
    noise_exponent: Annotated[float, Bounds(0, 2)] = 1.0
    """sac, td3: color of the noise on actions; 0: white, 1: pink."""
    critic_sizes: tuple[Annotated[int, Bounds(1, 65_536)], ...] = ()
    """sac, td3: widths of the layers of actor and critics; none: 64,64 where observation and action
    have 8 numbers or fewer, else 256,256."""


@dataclass(eq=False)
class SAC(WithNoisyTarget):
    """Loss of critics, actor and temperature over a batch of transitions [B]; owns the target.

    The three touch separate weights, so that one optimizer may step them all."""

    options: TwinCriticOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, SACNetwork)
        self._network: SACNetwork = network
        self._target = SoftTarget(network, self.options.soft_update)
        self._noise = UpdateNoise()
        self._leaves = [leaf.name for leaf in network.spec.observation]
        self._dimensions = len(network.spec.action.low)
        given = self.options.target_entropy
        self._target_entropy = -float(self._dimensions) if given is None else given

    def __call__(self, batch: Tensors) -> Loss:
        network = self._network
        now = {name: batch[name] for name in self._leaves}
        later = {name: batch["next_" + name] for name in self._leaves}
        noise = self._noise.normal((2, len(batch["reward"]), self._dimensions), batch["reward"])
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
