# SPDX-License-Identifier: Apache-2.0
"""Q-learning targets and losses: DQN, double DQN, n-step, Sarsa.

DQN: Mnih et al. 2015, Algorithm 1. Double: van Hasselt et al. 2016, equation 4. n-step loss with
importance weights: Horgan et al. 2018 (Ape-X), section 3.1. Asynchronous workers: Mnih et al. 2016
(A3C), Algorithms 1 and S2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veldt.algorithms.returns import discounts, n_step_returns


class QLoss(NamedTuple):
    """The scalar loss, and the TD errors [B] without gradient (for priorities; 0 where invalid)."""

    loss: Tensor
    td: Tensor


@torch.no_grad()
def bootstrap_values(
    next_q_online: Tensor | None,
    next_q_target: Tensor,
    double: bool,
    next_action_mask: Tensor | None = None,
) -> Tensor:
    """Value [...] of a successor from its action values [..., A]: Q_target(s', a*).

    a* = argmax of the online network if `double`, of the target network otherwise, among the
    actions that `next_action_mask` [..., A] allows.
    """
    if double and next_q_online is None:
        raise ValueError("double Q-learning needs next_q_online")
    judge = next_q_online if double and next_q_online is not None else next_q_target
    if next_action_mask is not None:
        judge = judge.masked_fill(~next_action_mask, -torch.inf)
    best = judge.argmax(-1, keepdim=True)
    return next_q_target.gather(-1, best).squeeze(-1)


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Q(s, a) [...] of `action` [...] (int64) from action values `q` [..., A]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def td_errors(
    q: Tensor,
    action: Tensor,
    reward: Tensor,
    discount: Tensor,
    next_q_online: Tensor | None,
    next_q_target: Tensor,
    double: bool = True,
    next_action_mask: Tensor | None = None,
) -> Tensor:
    """G + discount Q_target(s', a*) - Q(s, a), [B]; only Q(s, a) carries gradient.

    `q`, `next_q_*`, `next_action_mask` are [B, A], the rest [B]. For n-step transitions `reward` is
    sum_{k<m} gamma^k r and `discount` gamma^m; it is 0 where the window ends in a termination.
    """
    bootstrap = bootstrap_values(next_q_online, next_q_target, double, next_action_mask)
    return torch.addcmul(reward, discount, bootstrap) - chosen(q, action)


def squared(td: Tensor) -> Tensor:
    """td^2 / 2."""
    return 0.5 * td.square()


def huber(td: Tensor, delta: float = 1.0) -> Tensor:
    """td^2 / 2 up to |td| = delta, linear beyond: the gradient is td clipped to [-delta, delta]."""
    size = td.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def clipped(td: Tensor, bound: float = 1.0) -> Tensor:
    """DQN's clipped error: the value is td^2 / 2, the gradient td clipped to [-bound, bound]."""
    slope = td.detach().clamp(-bound, bound) * td
    return slope + (squared(td) - slope).detach()


def weighted_mean(terms: Tensor, importance_weights: Tensor | None) -> Tensor:
    """Mean over rows [B] of loss times importance weight; not divided by the weights' sum."""
    return (terms if importance_weights is None else terms * importance_weights).mean()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "huber": huber,
    "clipped": clipped,
    "squared": squared,
}


def q_loss(td: Tensor, loss: str = "huber", importance_weights: Tensor | None = None) -> QLoss:
    """Weighted loss of a batch of (n-step) transitions with these `td_errors` [B]."""
    if loss not in LOSSES:
        raise ValueError(f"unknown loss '{loss}'; use one of {', '.join(LOSSES)}")
    return QLoss(weighted_mean(LOSSES[loss](td), importance_weights), td.detach())


@torch.no_grad()
def worker_targets(
    kind: str,
    rewards: Tensor,
    next_q: Tensor,
    next_action: Tensor | None,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    gamma: float,
    next_action_mask: Tensor | None = None,
) -> Tensor:
    """Targets [T, B] of asynchronous one-step Q, n-step Q and one-step Sarsa workers.

    `next_q` [T, B, A] are the target network's values of each row's true successor. "one_step":
    r + gamma max_a Q. "sarsa": r + gamma Q(s', a') with a' = `next_action` [T, B], what the worker
    did (or would have done) in s'. "n_step": R <- r + gamma R from the end of the trajectory or
    episode. Other tensors are [T, B]; ignored rows give 0.
    """
    if kind == "sarsa":
        if next_action is None:
            raise ValueError("Sarsa needs next_action, the action taken in each successor")
        next_values = chosen(next_q, next_action)
    elif kind in ("one_step", "n_step"):
        next_values = bootstrap_values(None, next_q, False, next_action_mask)
    else:
        raise ValueError(f"unknown worker '{kind}'; use one_step, n_step or sarsa")
    if kind == "n_step":
        return n_step_returns(rewards, next_values, terminated, truncated, ignored, gamma)
    discount = discounts(terminated, gamma, rewards.dtype)
    return torch.addcmul(rewards, discount, next_values).masked_fill_(ignored, 0.0)
