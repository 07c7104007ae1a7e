# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic from replayed transitions, with automatic entropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veldt.algorithms.sac import actor_loss, soft_targets, temperature_loss
from veldt.algorithms.td3 import twin_critic_loss
from veldt.networks import Network, SACNetwork
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.target_network import SoftTarget
from veldt.objectives.update_noise import UpdateNoise


@dataclass(frozen=True)
class SACSettings:
    """What soft actor-critic needs beside replay and optimizer."""

    soft_update: float = 0.005
    """sac, td3: share of the new weights that the target takes over with each update."""
    target_entropy: float | None = None
    """sac: entropy that the temperature is learned for; none: -1 per action dimension."""


class SAC(Objective):
    """Loss of critics, actor and temperature over a batch of transitions [B]; owns the target.

    The three touch separate weights, so that one optimizer may step them all."""

    def __init__(self, network: Network, config: SACSettings) -> None:
        assert isinstance(network, SACNetwork)
        self._network = network
        self._target = SoftTarget(network, config.soft_update)
        self._noise = UpdateNoise()
        self._leaves = [leaf.name for leaf in network.spec.observation]
        self._dimensions = len(network.spec.action.low)
        given = config.target_entropy
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

    def after_update(self, version: int) -> None:
        self._target.after_update(version)
        self._noise.version = version

    def state(self) -> dict[str, np.ndarray]:
        return {**self._target.state(), **self._noise.state()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._target.load_state(state)
        self._noise.load_state(state)
