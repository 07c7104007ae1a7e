# SPDX-License-Identifier: Apache-2.0
"""Deterministic policy gradients from replayed transitions: Ape-X DPG.

Lillicrap et al. 2016 (DDPG), equation 6 and Algorithm 1; n-step target, weights and element-wise
clipped action gradients of Horgan et al. 2018 (Ape-X DPG), section 3.2 and appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from veldt.losses import Loss, Tensors
from veldt.losses.q_learning import QLearningOptions, QLoss, squared, weighted_mean
from veldt.losses.target_network import TargetNetwork, WithTarget
from veldt.networks import DPGNetwork, Network
from veldt.options.checked import NotNegative, Options
from veldt.options.groups import EXPLORATION_OPTIONS, LOSS_OPTIONS


@torch.no_grad()
def critic_targets(reward: Tensor, discount: Tensor, next_q_target: Tensor) -> Tensor:
    """y = G + discount q(S', pi(S'; phi-); psi-), all [B].

    `reward` is sum_{k<m} gamma^k r; `discount` is gamma^m, or 0 if it ends in a termination.
    """
    return torch.addcmul(reward, discount, next_q_target)


def critic_loss(q: Tensor, targets: Tensor, importance_weights: Tensor | None = None) -> QLoss:
    """Mean of w (y - q(s, a))^2 / 2, and y - q [B] for the priorities. All [B]."""
    td = targets.detach() - q
    return QLoss(weighted_mean(squared(td), importance_weights), td.detach())


def actor_loss(action: Tensor, q: Tensor, bound: float | None = 1.0) -> Tensor:
    """Mean of -q(s, pi(s)); its gradient reaches phi through dq/da, each entry clipped to +-bound.

    `action` [B, D] = pi(s; phi) and `q` [B] = critic(s, action) must be in one graph; the critic's
    part of it is used up here and its weights receive no gradient. `bound` None: no clipping.
    """
    (slope,) = torch.autograd.grad(q.sum(), action)
    if bound is not None:
        slope = slope.clamp(-bound, bound)
    gain = (slope * action).flatten(1).sum(-1)
    return (
        gain.detach() - gain - q.detach()
    ).mean()  # reads as -q, differentiates as -slope . action


@dataclass(frozen=True)
class DPGOptions(Options):
    """What deterministic policy gradients need beside the options of Q-learning."""

    actor_learning_rate: NotNegative = 1e-3
    """Step size of the policy; learning_rate is the critic's."""
    noise_sigma: Annotated[NotNegative, EXPLORATION_OPTIONS] = 0.3
    """Deviation of the noise on actions, in units of half their range."""
    action_gradient_clip: Annotated[NotNegative, LOSS_OPTIONS] = 1.0
    """Bound of each entry of dq/da on its way into the policy; 0: none."""


@dataclass(eq=False)
class DPG(WithTarget):
    """Loss of critic and actor over a batch of transitions [B]; owns the target networks.

    The two losses touch separate weights: the critic's gradient ends at the stored action, the
    actor's is cut off before the critic's weights."""

    q: QLearningOptions
    options: DPGOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, DPGNetwork)
        super().open(network)
        self._network: DPGNetwork = network
        self._target = TargetNetwork(network, self.q.target_period_updates)

    def __call__(self, batch: Tensors) -> Loss:
        network, target = self._network, self._target.network
        now, later = self._ends(batch)
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
