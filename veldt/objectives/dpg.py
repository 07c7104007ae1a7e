# SPDX-License-Identifier: Apache-2.0
"""Deterministic policy gradients from replayed transitions: Ape-X DPG."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from veldt.algorithms.dpg import actor_loss, critic_loss, critic_targets
from veldt.networks import DPGNetwork, Network
from veldt.objectives import Loss, Tensors


@dataclass(frozen=True)
class DPGSettings:
    """What deterministic policy gradients need beside the settings of Q-learning."""

    target_period_updates: int = 100
    """Updates between two copies of the network into the target network."""
    action_gradient_clip: float = 1.0
    """Bound of each entry of dq/da on its way into the policy; 0: none."""


class DPG:
    """Loss of critic and actor over a batch of transitions [B]; owns the target networks.

    The two losses touch separate weights: the critic's gradient ends at the stored action, the
    actor's is cut off before the critic's weights."""

    def __init__(self, network: Network, config: DPGSettings) -> None:
        assert isinstance(network, DPGNetwork)
        self._network, self._config = network, config
        self._target = copy.deepcopy(network).requires_grad_(False)
        self._online = [*network.parameters(), *network.buffers()]
        self._copy = [*self._target.parameters(), *self._target.buffers()]
        self._copies = 0
        self._leaves = [leaf.name for leaf in network.spec.observation]

    def __call__(self, batch: Tensors) -> Loss:
        network, target = self._network, self._target
        now = {name: batch[name] for name in self._leaves}
        later = {name: batch["next_" + name] for name in self._leaves}
        with torch.no_grad():
            bootstrap = target.critic(later, target.actor(later))
            reward = batch["reward"] * network.reward_scale()
            targets = critic_targets(reward, batch["discount"], bootstrap)
        critic = critic_loss(network.critic(now, batch["action"]), targets, batch["weight"])
        action = network.actor(now)
        q = network.critic(now, action)
        actor = actor_loss(action, q, bound=self._config.action_gradient_clip or None)
        metrics = {"td": critic.td.abs().mean(), "value": q.detach().mean(), "critic": critic.loss}
        return Loss(critic.loss + actor, metrics, priorities=critic.td.abs())

    def after_update(self, version: int) -> None:
        """`version` may jump where others step the weights: a copy is due for each full period."""
        due = version // self._config.target_period_updates
        if due > self._copies:
            self._copies = due
            self.copy_to_target()

    @torch.no_grad()
    def copy_to_target(self) -> None:
        torch._foreach_copy_(self._copy, self._online)
