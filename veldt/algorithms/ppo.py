# SPDX-License-Identifier: Apache-2.0
"""The clipped surrogate of APPO, used together with V-trace targets.

Schulman et al. 2017 (PPO), equation 7, with the clip range [1/(1+e), 1+e] that is symmetric in
log pi/mu, clipped values and normalised advantages of Petrenko et al. 2020 (Sample Factory).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from veldt.algorithms.reduction import reduce_over_valid
from veldt.algorithms.returns import Rows, discounts
from veldt.algorithms.vtrace import Traces, VTrace, vtrace


class PPOLoss(NamedTuple):
    """Scalars; `total` as in PolicyGradientLoss. The last two are measurements without gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    clipped_fraction: Tensor
    """Share of valid rows whose ratio lies outside the clip range."""
    divergence: Tensor
    """Estimate of KL(mu || pi) = E_mu[ratio - 1 - log ratio], never negative."""


@torch.no_grad()
def ppo_targets(log_rhos: Tensor, rows: Rows, traces: Traces) -> VTrace:
    """V-trace targets and the advantages that belong to them, without the first ratio; all [T, B].

    A_s = r_s + gamma V(x_{s+1}) - V(x_s) + gamma lambda (v_{s+1} - V(x_{s+1})). Where pi = mu this
    is generalized advantage estimation, and v_s = V(x_s) + A_s; lag cuts the traces.
    """
    vs, _ = vtrace(log_rhos, rows, traces)
    rewards, values, next_values, terminated, truncated, ignored = rows
    discount = discounts(terminated, traces.gamma, values.dtype)
    advantages = torch.addcmul(rewards, discount, next_values).sub_(values)
    decays = discount.mul_(traces.lambda_).masked_fill_(truncated | ignored, 0.0)
    advantages[:-1].addcmul_(decays[:-1], (vs - values)[1:])
    return VTrace(vs, advantages.masked_fill_(ignored, 0.0))


def scale_by_divergence(
    scale: float, divergence: float, target: float, least: float = 0.01, most: float = 10.0
) -> float:
    """The learning rate's next scale: smaller after steps that changed the policy more than twice
    the `target` KL, larger after less than half of it (rl_games' rule)."""
    if divergence > 2.0 * target:
        return max(scale / 1.5, least)
    if divergence < 0.5 * target:
        return min(scale * 1.5, most)
    return scale


@torch.no_grad()
def normalize_advantages(advantages: Tensor, valid: Tensor | None, epsilon: float = 1e-5) -> Tensor:
    """Shift and scale to mean 0, deviation 1 over valid rows, [T, B]; invalid rows become 0."""
    mean = reduce_over_valid(advantages, valid)
    centred = advantages - mean
    if valid is not None:
        centred = torch.where(valid, centred, 0.0)
    deviation = reduce_over_valid(centred.square(), valid).sqrt()
    return centred / (deviation + epsilon)


def clipped_surrogate(log_ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """-min(ratio A, clamp(ratio, 1/(1+clip), 1+clip) A) per row; all [T, B]."""
    ratios = log_ratios.exp()
    bounded = ratios.clamp(1.0 / (1.0 + clip), 1.0 + clip)
    return -torch.minimum(ratios * advantages, bounded * advantages)


def clipped_value_error(
    values: Tensor, old_values: Tensor, targets: Tensor, value_clip: float
) -> Tensor:
    """max of (V - v)^2 / 2 and the same with V held within +-value_clip of `old_values`; [T, B].
    `value_clip` 0: no holding."""
    if value_clip <= 0.0:
        return 0.5 * (values - targets).square()
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return 0.5 * torch.maximum((values - targets).square(), (near - targets).square())


def ppo_loss(
    log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    targets: Tensor,
    entropies: Tensor,
    valid: Tensor | None,
    clip: float,
    value_clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
    reduction: str = "mean",
    normalize: bool = True,
) -> PPOLoss:
    """Clipped surrogate + value_coefficient * clipped value error - entropy_coefficient * H(pi).

    All tensors are [T, B]; gradients flow through `log_probs`, `values` and `entropies` only.
    `advantages` must not contain pi/mu already (`vtrace(weighted=False)`). `old_values` are V at
    acting time. The value error carries 1/2, so Sample Factory's coefficient 0.5 is 1.0 here.
    """
    log_ratios = log_probs - behaviour_log_probs.detach()
    advantages, targets, old_values = advantages.detach(), targets.detach(), old_values.detach()
    if valid is not None:
        log_ratios = torch.where(valid, log_ratios, 0.0)
    if normalize:
        advantages = normalize_advantages(advantages, valid)
    surrogate = clipped_surrogate(log_ratios, advantages, clip)
    policy = reduce_over_valid(surrogate, valid, reduction)
    errors = clipped_value_error(values, old_values, targets, value_clip)
    value = reduce_over_valid(errors, valid, reduction)
    entropy = reduce_over_valid(entropies, valid, reduction)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    with torch.no_grad():
        outside = (log_ratios.abs() > math.log1p(clip)).to(log_ratios.dtype)
        clipped_fraction = reduce_over_valid(outside, valid)
        divergence = reduce_over_valid(log_ratios.expm1() - log_ratios, valid)
    return PPOLoss(total, policy, value, entropy, clipped_fraction, divergence)
