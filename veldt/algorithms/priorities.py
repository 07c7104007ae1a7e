# SPDX-License-Identifier: Apache-2.0
"""Initial priorities, computed by the actor from the Q-values it already has. NumPy only.

Horgan et al. 2018 (Ape-X), Algorithm 1: without them new data would enter the replay at the maximum
priority and the learner would train on little else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """n-step windows of a trajectory, all [T, E]; zeros where the start row is ignored."""

    reward: np.ndarray
    """sum_{k<length} gamma^k r_{t+k}."""
    discount: np.ndarray
    """gamma^length, or 0 where the window ends in a termination."""
    length: np.ndarray
    """Rows in the window; its last row is t + length - 1."""


def n_step_windows(
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    ignored: np.ndarray,
    gamma: float,
    n: int,
) -> Windows:
    """Cut the n-step window that starts at each row; arguments [T, E].

    A window has n rows, fewer where an episode ends, an ignored row follows or the trajectory ends
    first. At row T it bootstraps with the length it has reached.
    """
    if n < 1:
        raise ValueError(f"n-step windows need n >= 1, got {n}")
    counted = ~ignored
    rewards = np.where(counted, reward, 0).astype(np.float32)
    flows = counted & ~terminated & ~truncated
    flows[:-1] &= counted[1:]
    flows[-1] = False
    flows = flows[:-1]
    gammas = np.float32(gamma) * (counted & ~terminated)
    total, discount, length = rewards.copy(), gammas.copy(), counted.astype(np.int64)
    for _ in range(min(n, len(reward)) - 1):
        total[:-1] = rewards[:-1] + np.where(flows, np.float32(gamma) * total[1:], 0)
        discount[:-1] = np.where(flows, np.float32(gamma) * discount[1:], gammas[:-1])
        length[:-1] = counted[:-1] + np.where(flows, length[1:], 0)
    return Windows(total, discount, length)


def n_step_priorities(
    q_values: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    ignored: np.ndarray,
    gamma: float,
    n: int,
    next_values: np.ndarray | None = None,
    action_mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """|G + discount max_a q(S_{t+m}, a) - q(S_t, A_t)| for every start row: priority, valid [T, E].

    `q_values` and `action_mask` are [T+1, E, A], the rest [T, E]; row T only bootstraps. Every row
    that is not ignored is a valid start. m = n, shortened by an episode's end, and in the last
    n - 1 rows by the trajectory's: there m = T - t, bootstrapped at row T. Invalid rows have
    priority 0. `next_values` [T, E], max_a q of each row's true successor, are needed only where
    environments reset within the step; by default they come from q_values one row later.
    """
    if next_values is None:
        judge = q_values[1:]
        if action_mask is not None:
            judge = np.where(action_mask[1:], judge, -np.inf)
        next_values = _chosen(q_values[1:], judge.argmax(-1))
    windows = n_step_windows(reward, terminated, truncated, ignored, gamma, n)
    last = np.arange(len(reward))[:, None] + windows.length - 1
    bootstrap = np.take_along_axis(next_values, last, axis=0)
    error = windows.reward + windows.discount * bootstrap - _chosen(q_values[:-1], action)
    return np.where(ignored, 0, np.abs(error)).astype(np.float32), ~ignored


def _chosen(q_values: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.take_along_axis(q_values, action[..., None], axis=-1)[..., 0]
