# SPDX-License-Identifier: Apache-2.0
"""Rescaled n-step double Q-learning on sequences, and their priorities.

Kapturowski et al. 2019 (R2D2), section 2.3; h and its inverse are Pohlen et al. 2018's. Burn-in is
the caller's: pass only the rows after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veldt.algorithms.q_learning import QLoss, bootstrap_values, chosen, squared, weighted_mean
from veldt.algorithms.returns import n_step_returns

EPSILON = 1e-3


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, written without cancellation near 0."""
    return x / ((x.abs() + 1.0).sqrt() + 1.0) + epsilon * x


def inverse_rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

    With w the term that is squared, w - 1 = 2|x| / (root + 1 + 2 epsilon). The code uses this form
    because the printed one cancels: near 0 it has no correct digit left in float32.
    """
    size = x.abs()
    root = (1.0 + 4.0 * epsilon * (size + 1.0 + epsilon)).sqrt()
    slope = 2.0 / (root + 1.0 + 2.0 * epsilon)
    return x * slope * (2.0 + size * slope)


@torch.no_grad()
def sequence_targets(
    rewards: Tensor,
    next_q_online: Tensor,
    next_q_target: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    gamma: float,
    n: int,
    next_action_mask: Tensor | None = None,
    epsilon: float = EPSILON,
) -> Tensor:
    """y = h(sum_{k<m} gamma^k r_{t+k} + gamma^m h^-1(Q(s_{t+m}, a*; theta-))), [T, B].

    `next_q_*` and `next_action_mask` [T, B, A] belong to each row's true successor; a* is what the
    online network prefers; the rest is [T, B]. Ends and row T shorten a window as in
    `n_step_returns`. Ignored rows give 0.
    """
    bootstrap = bootstrap_values(next_q_online, next_q_target, True, next_action_mask)
    next_values = inverse_rescale(bootstrap, epsilon)
    returns = n_step_returns(rewards, next_values, terminated, truncated, ignored, gamma, n)
    return rescale(returns, epsilon)


def sequence_loss(
    q: Tensor,
    action: Tensor,
    targets: Tensor,
    valid: Tensor,
    importance_weights: Tensor | None = None,
) -> QLoss:
    """Mean over sequences of w sum_t (y_t - Q_t)^2 / 2, and the TD errors [T, B].

    `q` is [T, B, A], `importance_weights` [B], the rest [T, B]; rows that are not valid give 0.
    """
    td = torch.where(valid, targets.detach() - chosen(q, action), 0.0)
    return QLoss(weighted_mean(squared(td).sum(0), importance_weights), td.detach())


def sequence_priority(abs_td: Tensor, valid: Tensor, eta: float = 0.9) -> Tensor:
    """p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t| over valid rows: [T, B] -> [B].

    A sequence without a valid row has priority 0.
    """
    sizes = torch.where(valid, abs_td, 0.0)
    mean = sizes.sum(0) / valid.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1.0 - eta) * mean
