# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic with twin critics and a temperature that is learned.

Haarnoja et al. 2018 (Soft Actor-Critic Algorithms and Applications): targets are equations 3 and 5,
the actor's loss equation 9, the temperature's equation 18; critics and their loss are TD3's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veldt.algorithms.reduction import reduce_over_valid


@torch.no_grad()
def soft_targets(
    reward: Tensor, discount: Tensor, next_qs: Tensor, next_log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """y = G + discount (min_i q_i(S', a') - temperature log pi(a' | S')), [B], a' ~ pi(S').

    `next_qs` [2, B] are the target critics'. With n-step rewards only the last state's entropy is
    counted: that of the steps between was the behaviour's, not the policy's.
    """
    return torch.addcmul(reward, discount, next_qs.amin(0) - temperature * next_log_prob)


def actor_loss(
    action: Tensor,
    qs: Tensor,
    log_prob: Tensor,
    temperature: Tensor,
    valid: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """temperature log pi(a | s) - min_i q_i(s, a) for a = tanh(mean + std noise).

    `action` [B, ...] and `qs` [2, B] = critics(s, action) must be in one graph; the critics' part
    of it is used up here and their weights receive no gradient.
    """
    q = qs.amin(0)
    (slope,) = torch.autograd.grad(q.sum(), action)
    gain = (slope * action).flatten(1).sum(-1)
    q = q.detach() + gain - gain.detach()  # reads as q, differentiates as slope . action
    return reduce_over_valid(temperature.detach() * log_prob - q, valid, reduction)


def temperature_loss(
    log_temperature: Tensor,
    log_prob: Tensor,
    target_entropy: float,
    valid: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-log temperature (log pi(a | s) + target entropy): it rises while the entropy is too low.

    The logarithm in the temperature's place keeps it positive; its sign is the same.
    """
    surplus = (log_prob + target_entropy).detach()
    return reduce_over_valid(-log_temperature * surplus, valid, reduction)
