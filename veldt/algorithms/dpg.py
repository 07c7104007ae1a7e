# SPDX-License-Identifier: Apache-2.0
"""Deterministic policy gradients for continuous actions, and soft target-network copies.

Lillicrap et al. 2016 (DDPG), equation 6 and Algorithm 1; n-step target, weights and element-wise
clipped action gradients of Horgan et al. 2018 (Ape-X DPG), section 3.2 and appendix D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veldt.algorithms.q_learning import QLoss, squared, weighted_mean


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
    terms = gain.detach() - gain - q.detach()  # reads as -q, differentiates as -slope . action
    return terms.mean()


@torch.no_grad()
def soft_copy(target: Tensor, online: Tensor, tau: float) -> None:
    """target <- target + tau (online - target), in place, on flat parameter vectors [P]."""
    target.lerp_(online, tau)
