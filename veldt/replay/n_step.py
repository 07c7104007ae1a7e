# SPDX-License-Identifier: Apache-2.0
"""N-step windows over rows of many environments at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Windows:
    """One window per start row [M, E]. Row s + `length` is the one it bootstraps from."""

    reward: np.ndarray
    """sum over k < length of discount^k * reward[s + k], float64."""
    discount: np.ndarray
    """discount^length; 0 where the episode terminated inside."""
    length: np.ndarray
    ended: np.ndarray
    """The last step of the window ended the episode."""
    open: np.ndarray
    """The rows ran out before n steps or an end: right as far as it goes, and may still grow."""
    complete: np.ndarray


def n_step_windows(
    reward: np.ndarray,
    terminated: np.ndarray,
    ends: np.ndarray,
    usable: np.ndarray,
    severed: np.ndarray,
    n_step: int,
    discount: float,
) -> Windows:
    """Windows that start at each of M rows; row M only bootstraps.

    `usable`: may start a window (not a reset row). `severed`: the next row does not follow from
    this one although no end was announced; a window that meets it is neither open nor complete."""
    num_rows = len(reward)
    total = np.zeros(reward.shape)
    factor = np.ones(reward.shape)
    length = np.zeros(reward.shape, np.int64)
    ended = np.zeros(reward.shape, bool)
    active = usable.copy()
    stops = ends | severed
    growth = np.where(terminated, 0.0, discount)
    for ahead in range(min(n_step, num_rows)):
        starts = num_rows - ahead
        running = active[:starts]
        total[:starts] += factor[:starts] * reward[ahead:] * running
        length[:starts] += running
        factor[:starts] *= np.where(running, growth[ahead:], 1.0)
        ended[:starts] |= running & ends[ahead:]
        active[:starts] = running & ~stops[ahead:]
    grown = length == n_step
    return Windows(total, factor, length, ended, active & ~grown, ended | (active & grown))
