# SPDX-License-Identifier: Apache-2.0
"""V-trace (Espeholt et al. 2018, IMPALA).

Targets v_s are equation 1, the recursion is remark 1, the policy gradient is section 4.2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veldt.losses.returns import Rows, accumulate_backward, discounts


class VTrace(NamedTuple):
    """Value targets and policy-gradient advantages, both [T, B] and without gradient."""

    vs: Tensor
    advantages: Tensor


class Traces(NamedTuple):
    """How far corrections reach."""

    gamma: float
    lambda_: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0


@torch.no_grad()
def vtrace(log_rhos: Tensor, rows: Rows, traces: Traces, weighted: bool = True) -> VTrace:
    """v_s = V(x_s) + sum_t gamma^(t-s) (prod_{i<t} c_i) rho_t (r_t + gamma V(x_{t+1}) - V(x_t)).

    rho_t = min(rho_bar, pi/mu), c_i = lambda min(c_bar, pi/mu); the advantage is
    rho_s (r_s + gamma v_{s+1} - V(x_s)). All tensors are [T, B]; `log_rhos` = log pi - log mu.
    `next_values[t]` is V of row t's true successor: `values` one row later, except where the
    environment resets within the step, there V(final observation). A terminated row does not
    bootstrap; a truncated row does, but no trace crosses it. Ignored rows: vs = V, advantage 0.
    `weighted=False` leaves rho_s out of the advantage, for losses that bring their own ratio (PPO).
    """
    gamma, lambda_, rho_bar, c_bar = traces
    if rho_bar < c_bar:
        raise ValueError(f"V-trace needs rho_bar >= c_bar, got {rho_bar} < {c_bar}")
    rewards, values, next_values, terminated, truncated, ignored = rows
    rhos = log_rhos.masked_fill(ignored, 0.0).exp_()
    discount = discounts(terminated, gamma, values.dtype)
    td = torch.addcmul(rewards, discount, next_values).sub_(values).masked_fill_(ignored, 0.0)
    discount.masked_fill_(truncated | ignored, 0.0)
    decays = rhos.clamp(max=c_bar).mul_(discount).mul_(lambda_)
    rhos.clamp_(max=rho_bar)
    corrections = accumulate_backward(rhos * td, decays)  # v_s - V(x_s)
    # r + gamma v_{s+1} - V(x_s) is td plus what the targets add to V(x_{s+1}).
    td[:-1].addcmul_(discount[:-1], corrections[1:])
    advantages = td.mul_(rhos) if weighted else td
    return VTrace(corrections.add_(values), advantages)
