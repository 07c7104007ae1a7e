# SPDX-License-Identifier: Apache-2.0
"""Sum or mean of per-row losses over the rows that count.

Learning rates are not portable between the two: IMPALA and GA3C sum, A2C, SEED and PPO average.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reduce_over_valid(terms: Tensor, valid: Tensor | None, reduction: str = "mean") -> Tensor:
    """Reduce `terms` [...] to a scalar over rows where `valid` [...] (bool; None: all rows).

    "mean" divides by the number of valid rows; a batch without any gives 0, not NaN.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"unknown reduction '{reduction}'; use mean or sum")
    if valid is None:
        return terms.mean() if reduction == "mean" else terms.sum()
    total = torch.where(valid, terms, 0.0).sum()
    return total / valid.sum().clamp(min=1) if reduction == "mean" else total
