# SPDX-License-Identifier: Apache-2.0
"""Corrections for policy lag: how much a row of an older policy counts, and towards which targets.

u = pi / mu is the ratio of the policy that learns to the one that acted. none, epsilon, one_step,
vtrace: Espeholt et al. 2018 (IMPALA), section 5.2.2. clip: Schulman et al. 2017. decoupled: Hilton
et al. 2022, Fu et al. 2025 (AReaL). tis: Yao et al. 2025. icepop: Ling Team 2025. m2po: Zheng et
al. 2025. ess: after VCPO (2026), on V-trace's weights. drop: as prime-rl does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from veldt.losses.returns import Rows
from veldt.losses.vtrace import Traces, VTrace, vtrace
from veldt.options.checked import Count, Options, Positive
from veldt.options.groups import LOSS_OPTIONS

_ON_POLICY_TARGETS = ("one_step", "epsilon", "none", "drop")
_LOG_FLOOR = math.log(1e-6)
_MOST_LOG_RATIO = 20.0  # beyond, a float32 soon overflows


@dataclass(frozen=True)
class CorrectionConstants(Options):
    """Constants of the corrections; V-trace's are `rho_bar` and `c_bar`."""

    tis_max: Annotated[Positive, LOSS_OPTIONS] = 2.0
    """tis: largest weight of a row."""
    icepop_min: Annotated[Positive, LOSS_OPTIONS] = 0.5
    """icepop: rows with a smaller ratio do not count."""
    icepop_max: Annotated[Positive, LOSS_OPTIONS] = 5.0
    """icepop: rows with a larger ratio do not count."""
    m2po_max: Annotated[Positive, LOSS_OPTIONS] = 0.04
    """m2po: largest mean of the squared log ratio."""
    drop_lag: Annotated[Count, LOSS_OPTIONS] = 8
    """drop: rows that are more updates old do not count."""


def corrected_targets(kind: str, log_rhos: Tensor, rows: Rows, traces: Traces) -> VTrace:
    """Value targets and advantages r + gamma v_{s+1} - V(x_s) before any weight, [T, B].

    Those of `none`, `epsilon`, `one_step` and `drop` are what they would be without lag, all others
    are V-trace's; `log_rhos` = log pi - log mu.
    """
    if kind in _ON_POLICY_TARGETS:
        plain = Traces(traces.gamma, traces.lambda_)
        return vtrace(torch.zeros_like(log_rhos), rows, plain, weighted=False)
    return vtrace(log_rhos, rows, traces, weighted=False)


@torch.no_grad()
def row_weights(
    kind: str, log_rhos: Tensor, counted: Tensor, rho_bar: float, constants: CorrectionConstants
) -> Tensor | None:
    """What each row's policy gradient is multiplied by [T, B]; None: by 1 everywhere.

    Args:
        kind: The correction.
        log_rhos: log u of each row.
        counted: Rows that count; what the others hold is ignored.
        rho_bar: Largest weight of vtrace, one_step and ess.
        constants: Those of the other corrections.
    """
    if kind in ("none", "epsilon", "clip", "drop"):
        return None
    log_rhos = log_rhos.masked_fill(~counted, 0.0)
    ratios = log_rhos.clamp(max=_MOST_LOG_RATIO).exp_()
    if kind == "decoupled":
        return ratios
    if kind == "tis":
        return ratios.clamp_(max=constants.tis_max)
    if kind == "icepop":
        inside = (ratios >= constants.icepop_min) & (ratios <= constants.icepop_max)
        return ratios.mul_(inside)
    if kind == "m2po":
        return ratios.mul_(bounded_second_moment(log_rhos, counted, constants.m2po_max))
    return ratios.clamp_(max=rho_bar)


def bounded_second_moment(log_rhos: Tensor, counted: Tensor, most: float) -> Tensor:
    """Bool [T, B]: all counted rows but those of largest (log u)^2, so that its mean is at most
    `most`."""
    squares = log_rhos.square().masked_fill(~counted, torch.inf).flatten()
    ascending, order = squares.sort(stable=True)
    number = torch.arange(1, len(squares) + 1, device=squares.device)
    # The mean over the smallest squares rises with their number, so those that fit come first.
    fits = ascending.cumsum(0) / number <= most
    return torch.empty_like(fits).scatter_(0, order, fits).view_as(log_rhos)


@torch.no_grad()
def effective_share(log_rhos: Tensor, counted: Tensor) -> Tensor:
    """Effective sample size (sum u)^2 / sum u^2 as a share of the counted rows."""
    log_rhos = log_rhos.masked_fill(~counted, -torch.inf)
    most = log_rhos.amax().clamp(min=torch.finfo(log_rhos.dtype).min)
    ratios = (log_rhos - most).exp_()  # a common factor cancels, and nothing overflows
    size = ratios.sum().square() / ratios.square().sum().clamp(min=1e-30)
    return size / counted.sum().clamp(min=1)


def floored(kind: str, log_probs: Tensor) -> Tensor:
    """`epsilon`: log max(pi, 1e-6), which stops the gradient of rarer actions; else log pi."""
    return log_probs.clamp(min=_LOG_FLOOR) if kind == "epsilon" else log_probs


def clipped_surrogate(log_ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """-min(ratio A, clamp(ratio, 1/(1+clip), 1+clip) A) per row; all [T, B]."""
    ratios = log_ratios.exp()
    bounded = ratios.clamp(1.0 / (1.0 + clip), 1.0 + clip)
    return -torch.minimum(ratios * advantages, bounded * advantages)
