# SPDX-License-Identifier: Apache-2.0
"""Values that depend on time or on an actor's place among its peers.

The ladder of exploration rates is Horgan et al. 2018 (Ape-X), section 4.1.
"""

from __future__ import annotations

import numpy as np


def linear(start: float, end: float, horizon: float, now: float) -> float:
    """From `start` at 0 to `end` at `horizon` and constant after; `now` in the horizon's unit.

    `functools.partial(linear, 1.0, 0.1, 1_000_000)` is a schedule that can be sent to a process.
    """
    if horizon <= 0:
        return end
    share = min(max(now / horizon, 0.0), 1.0)
    return start + share * (end - start)


def epsilon_ladder(
    index: int | np.ndarray, count: int, base: float = 0.4, alpha: float = 7.0
) -> float | np.ndarray:
    """epsilon_i = base^(1 + alpha i / (count - 1)) for i = 0 .. count - 1; `base` if count is 1.

    `index` may be an array, for an actor whose environments stand on different rungs.
    """
    return base ** (1.0 + alpha * index / max(count - 1, 1))
