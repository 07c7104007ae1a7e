# SPDX-License-Identifier: Apache-2.0
"""Deterministic policy gradients from replayed transitions: Ape-X DPG."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from veldt.algorithms.dpg import actor_loss, critic_loss, critic_targets
from veldt.networks import DPGNetwork, Network
from veldt.objectives import Loss, Tensors
from veldt.objectives.q_learning import QLearningOptions
from veldt.objectives.target_network import TargetNetwork, WithTarget
from veldt.options.checked import NotNegative, Options


@dataclass(frozen=True)
class DPGOptions(Options):
    """What deterministic policy gradients need beside the options of Q-learning."""

    actor_learning_rate: NotNegative = 1e-3
    """dpg: step size of the policy; learning_rate is the critic's."""
    noise_sigma: NotNegative = 0.3
    """dpg: deviation of the noise on actions, in units of half their range."""
    action_gradient_clip: NotNegative = 1.0
    """dpg: bound of each entry of dq/da on its way into the policy; 0: none."""


@dataclass(eq=False)
class DPG(WithTarget):
    """Loss of critic and actor over a batch of transitions [B]; owns the target networks.

    The two losses touch separate weights: the critic's gradient ends at the stored action, the
    actor's is cut off before the critic's weights."""

    q: QLearningOptions
    options: DPGOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, DPGNetwork)
        self._network: DPGNetwork = network
        self._target = TargetNetwork(network, self.q.target_period_updates)
        self._leaves = [leaf.name for leaf in network.spec.observation]

    def __call__(self, batch: Tensors) -> Loss:
        network, target = self._network, self._target.network
        now = {name: batch[name] for name in self._leaves}
        later = {name: batch["next_" + name] for name in self._leaves}
        with torch.no_grad():
            bootstrap = target.critic(later, target.actor(later))
            reward = batch["reward"] * network.reward_scale()
            targets = critic_targets(reward, batch["discount"], bootstrap)
        critic = critic_loss(network.critic(now, batch["action"]), targets, batch["weight"])
        action = network.actor(now)
        q = network.critic(now, action)
        actor = actor_loss(action, q, bound=self.options.action_gradient_clip or None)
        metrics = {"td": critic.td.abs().mean(), "value": q.detach().mean(), "critic": critic.loss}
        return Loss(critic.loss + actor, metrics, priorities=critic.td.abs())
