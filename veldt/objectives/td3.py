# SPDX-License-Identifier: Apache-2.0
"""TD3 from replayed transitions: clipped double Q, smoothed target actions, a delayed actor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veldt.algorithms.dpg import actor_loss
from veldt.algorithms.td3 import clipped_double_targets, smoothed_action, twin_critic_loss
from veldt.networks import Network, TD3Network
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.target_network import SoftTarget
from veldt.objectives.update_noise import UpdateNoise


@dataclass(frozen=True)
class TD3Settings:
    """What TD3 needs beside replay and optimizer."""

    soft_update: float = 0.005
    """sac, td3: share of the new weights that the target takes over with each update."""
    actor_period_updates: int = 2
    """td3: updates of the critics for each of the actor and the target."""
    smoothing_sigma: float = 0.2
    """td3: deviation of the noise on target actions, in units of half their range."""
    smoothing_bound: float = 0.5
    """td3: largest noise on target actions."""


class TD3(Objective):
    """Loss of critics and, every `actor_period_updates`, of the actor over transitions [B].

    In between the actor's gradient is zero, and an optimizer of its own must leave it alone: with
    momentum, a step by a zero gradient still moves."""

    def __init__(self, network: Network, config: TD3Settings) -> None:
        assert isinstance(network, TD3Network)
        self._network, self._config = network, config
        self._target = SoftTarget(network, config.soft_update, config.actor_period_updates)
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
        if self._noise.version % self._config.actor_period_updates == 0:
            action = network.actor(now)
            total = total + actor_loss(action, network.critics(now, action)[0], bound=None)
        metrics = {"td": critic.td.mean(), "value": targets.mean(), "critic": critic.loss}
        return Loss(total, metrics, priorities=critic.td)

    @torch.no_grad()
    def _targets(self, batch: Tensors, later: Tensors) -> Tensor:
        target, config = self._target.network, self._config
        action = target.actor(later)
        noise = self._noise.normal(tuple(action.shape), action)
        action = smoothed_action(action, noise, config.smoothing_sigma, config.smoothing_bound)
        reward = batch["reward"] * self._network.reward_scale()
        return clipped_double_targets(reward, batch["discount"], target.critics(later, action))

    def after_update(self, version: int) -> None:
        self._target.after_update(version)
        self._noise.version = version

    def state(self) -> dict[str, np.ndarray]:
        return {**self._target.state(), **self._noise.state()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._target.load_state(state)
        self._noise.load_state(state)
