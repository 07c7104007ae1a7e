# SPDX-License-Identifier: Apache-2.0
"""The actor-critic loss shared by A3C, A2C, GA3C, IMPALA and SEED.

Mnih et al. 2016 (A3C), Algorithm S3 with the entropy term of section 4; Espeholt et al. 2018
(IMPALA), section 4.2; the floor under pi is GA3C's (Babaeizadeh et al. 2017).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from veldt.algorithms.reduction import reduce_over_valid


class PolicyGradientLoss(NamedTuple):
    """Scalars; `total` = policy + value_coefficient * value - entropy_coefficient * entropy."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def policy_gradient_loss(
    log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    targets: Tensor,
    entropies: Tensor,
    valid: Tensor | None,
    value_coefficient: float,
    entropy_coefficient: float,
    reduction: str = "mean",
    probability_floor: float = 0.0,
) -> PolicyGradientLoss:
    """-log pi(a|x) A + value_coefficient (v - V)^2 / 2 - entropy_coefficient H(pi), reduced.

    All tensors are [T, B] (or [B]); gradients flow through `log_probs`, `values` and `entropies`
    only. Rows where `valid` is False count for nothing. The square carries a factor 1/2: IMPALA's
    baseline cost 0.5 is 0.5 here, while the 0.5 of A3C and A2C, which stands before a plain
    square, is 1.0. `probability_floor` > 0 replaces log pi by log(max(pi, floor)), which stops the
    gradient of actions the policy has all but given up (GA3C: 1e-6).
    """
    if probability_floor > 0.0:
        log_probs = log_probs.clamp(min=math.log(probability_floor))
    policy = reduce_over_valid(-log_probs * advantages.detach(), valid, reduction)
    value = reduce_over_valid(0.5 * (targets.detach() - values).square(), valid, reduction)
    entropy = reduce_over_valid(entropies, valid, reduction)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    return PolicyGradientLoss(total, policy, value, entropy)
