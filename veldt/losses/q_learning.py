# SPDX-License-Identifier: Apache-2.0
"""Q-learning from replayed transitions: DQN, double DQN, n-step (Gorila, Ape-X).

DQN: Mnih et al. 2015, Algorithm 1. Double: van Hasselt et al. 2016, equation 4. n-step loss with
importance weights: Horgan et al. 2018 (Ape-X), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from veldt.losses import Loss, Tensors, TransitionOptions
from veldt.losses.target_network import TargetNetwork, WithTarget
from veldt.networks import Network
from veldt.options.checked import Count
from veldt.options.groups import LOSS_OPTIONS
from veldt.types import ACTION_MASK


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


def weighted_mean(terms: Tensor, importance_weights: Tensor | None) -> Tensor:
    """Mean over rows [B] of loss times importance weight; not divided by the weights' sum."""
    return (terms if importance_weights is None else terms * importance_weights).mean()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"huber": huber, "squared": squared}


def q_loss(td: Tensor, loss: str = "huber", importance_weights: Tensor | None = None) -> QLoss:
    """Weighted loss of a batch of (n-step) transitions with these `td_errors` [B]."""
    return QLoss(weighted_mean(LOSSES[loss](td), importance_weights), td.detach())


@dataclass(frozen=True)
class QLearningOptions(TransitionOptions):
    """Targets of action values and the loss of their errors."""

    double: bool = True
    """Let the online network choose the action that the target network evaluates."""
    td_loss: Annotated[Literal["huber", "squared"], LOSS_OPTIONS] = "huber"
    """huber (gradient of the TD error clipped to [-1, 1], as in DQN) or squared."""
    target_period_updates: Count = 100
    """Updates between two copies of the network into the target network."""


@dataclass(eq=False)
class QLearning(WithTarget):
    """Loss over a batch of transitions [B]; owns the target network.

    Args:
        options: Discount, n-step, loss of the TD error and period of the target network.
    """

    options: QLearningOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._target = TargetNetwork(network, self.options.target_period_updates)

    def constants(self) -> Hashable | None:
        return self.options

    def __call__(self, batch: Tensors) -> Loss:
        reward = batch["reward"]
        first = torch.zeros_like(reward, dtype=torch.bool)
        now, later = self._ends(batch)
        q = self._network.step(now, (), first)[0].q_values
        with torch.no_grad():
            target = self._target.network.step(later, (), first)[0].q_values
            online = target
            if self.options.double:
                online = self._network.step(later, (), first)[0].q_values
        td = td_errors(
            q,
            batch["action"],
            reward * self._network.reward_scale(),
            batch["discount"],
            online,
            target,
            self.options.double,
            later.get(ACTION_MASK),
        )
        loss = q_loss(td, self.options.td_loss, batch["weight"])
        errors = loss.td.detach().abs()
        metrics = {"td": errors.mean(), "value": q.detach().mean(), "q": loss.loss}
        return Loss(loss.loss, metrics, priorities=errors)
