# SPDX-License-Identifier: Apache-2.0
"""Returns of trajectories [T, B] with episode ends and reset rows; reduction over valid rows.

n-step and forward-view returns: Mnih et al. 2016 (A3C), Algorithm S3, R <- r_i + gamma R.
"""

# Rows, in every file of this package: row t holds the reward and flags that answer its action, and
# next_values[t] is the value of its true successor: a truncated row bootstraps from it, a
# terminated one does not. `ignored` marks reset rows: nothing flows into, out of or across them.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """What targets of a trajectory are made of, all [T, B]."""

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    truncated: Tensor
    ignored: Tensor


def discounts(terminated: Tensor, gamma: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """gamma_t [T, B]: `gamma`, and 0 where the episode terminated. A truncated row keeps gamma."""
    full = torch.full(terminated.shape, gamma, dtype=dtype, device=terminated.device)
    return full.masked_fill_(terminated, 0.0)


def continues(terminated: Tensor, truncated: Tensor, ignored: Tensor) -> Tensor:
    """Bool [T, B]: row t + 1 exists, counts, and belongs to the same episode as row t."""
    flows = ~(terminated | truncated | ignored)
    flows[:-1] &= ~ignored[1:]
    flows[-1] = False
    return flows


def accumulate_backward(terms: Tensor, decays: Tensor) -> Tensor:
    """x_t = terms_t + decays_t x_{t+1} with x_T = 0, [T, B]. Overwrites and returns `terms`."""
    rows, factors = terms.unbind(0), decays.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(factors[t], rows[t + 1])
    return terms


@torch.no_grad()
def n_step_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    gamma: float,
    n: int | None = None,
) -> Tensor:
    """sum_{k<m} gamma^k r_{t+k} + gamma^m V(x_{t+m}) with m = n, less where an end comes first.

    Windows that would cross row T are shortened and bootstrap there, as at a truncation; without
    `n` all go that far (A3C's forward view). All arguments and the result are [T, B]; ignored rows
    give 0.
    """
    if n is not None and n < 1:
        raise ValueError(f"n-step returns need n >= 1, got {n}")
    flows = continues(terminated, truncated, ignored)
    discount = discounts(terminated, gamma, rewards.dtype)
    shortest = torch.addcmul(rewards, discount, next_values)
    if n is None or n >= len(rewards):
        terms = torch.where(flows, rewards, shortest).masked_fill_(ignored, 0.0)
        return accumulate_backward(terms, discount * flows)
    shortest.masked_fill_(ignored, 0.0)
    returns = shortest.clone()
    for _ in range(n - 1):
        longer = torch.add(rewards[:-1], returns[1:], alpha=gamma)
        returns[:-1] = torch.where(flows[:-1], longer, shortest[:-1])
    return returns


def reduce_over_valid(terms: Tensor, valid: Tensor | None, reduction: str = "mean") -> Tensor:
    """Reduce `terms` [...] to a scalar over rows where `valid` [...] (bool; None: all rows).

    "mean" divides by the number of valid rows; a batch without any gives 0, not NaN. Learning rates
    are not portable between the two: IMPALA and GA3C sum, A2C, SEED RL and PPO average.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"unknown reduction '{reduction}'; use mean or sum")
    if valid is None:
        return terms.mean() if reduction == "mean" else terms.sum()
    total = torch.where(valid, terms, 0.0).sum()
    return total / valid.sum().clamp(min=1) if reduction == "mean" else total
