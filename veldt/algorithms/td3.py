# SPDX-License-Identifier: Apache-2.0
"""Twin critics for continuous actions: TD3 (Fujimoto et al. 2018), Algorithm 1.

Clipped double Q-learning is equation 10, target policy smoothing equation 14. The actor's loss is
`dpg.actor_loss` with the first critic and no bound; that it is delayed is the objective's affair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veldt.algorithms.q_learning import QLoss, squared
from veldt.algorithms.reduction import reduce_over_valid


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
    qs: Tensor,
    targets: Tensor,
    importance_weights: Tensor | None = None,
    valid: Tensor | None = None,
    reduction: str = "mean",
) -> QLoss:
    """Sum over both critics of w (y - q_i(s, a))^2 / 2, from `qs` [2, B]; the rest is [B].

    `td` is the mean over the critics of |y - q_i|, what a priority is made of.
    """
    td = targets.detach() - qs
    if valid is not None:
        td = torch.where(valid, td, 0.0)
    terms = squared(td).sum(0)
    if importance_weights is not None:
        terms = terms * importance_weights
    return QLoss(reduce_over_valid(terms, valid, reduction), td.detach().abs().mean(0))
