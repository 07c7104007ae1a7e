# SPDX-License-Identifier: Apache-2.0
"""Action values from trajectories: A3C's one-step Q, n-step Q and one-step Sarsa workers.

Mnih et al. 2016 (A3C), Algorithms 1 and S2.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from veldt.errors import ConfigurationError
from veldt.losses import Loss, LossOptions, Objective, Tensors
from veldt.losses.q_learning import LOSSES, bootstrap_values, chosen
from veldt.losses.returns import discounts, n_step_returns, reduce_over_valid
from veldt.losses.trajectories import TrajectoryReader
from veldt.networks import FlatParameters, Network, NetworkOptions
from veldt.options.checked import Count, CountOrNone, Fraction
from veldt.options.groups import EXPLORATION_OPTIONS, LOSS_OPTIONS
from veldt.types import ACTION_MASK, EnvironmentSpec


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
    else:
        next_values = bootstrap_values(None, next_q, False, next_action_mask)
    if kind == "n_step":
        return n_step_returns(rewards, next_values, terminated, truncated, ignored, gamma)
    discount = discounts(terminated, gamma, rewards.dtype)
    return torch.addcmul(rewards, discount, next_values).masked_fill_(ignored, 0.0)


@dataclass(frozen=True)
class AsynchronousQOptions(LossOptions):
    """Loss and exploration of value-based workers."""

    worker: Literal["n_step", "one_step", "sarsa"] = "n_step"
    """n_step or one_step Q-learning, or one-step Sarsa."""
    reduction: Annotated[Literal["mean", "sum"], LOSS_OPTIONS] = "mean"
    """mean or sum over rows; learning rates are not portable between the two."""
    normalize_returns: Annotated[bool, LOSS_OPTIONS] = True
    """Scale rewards by the spread of the discounted return, as seen by all actors."""
    td_loss: Annotated[Literal["squared", "huber"], LOSS_OPTIONS] = "squared"
    """squared or huber."""
    target_period_updates: Count = 200
    """Updates of all workers between two copies into the target network."""
    epsilon_ends: Annotated[tuple[Fraction, ...], EXPLORATION_OPTIONS] = (0.1, 0.01, 0.5)
    """Final values of epsilon, one of which is drawn per worker."""
    epsilon_odds: Annotated[tuple[Fraction, ...], EXPLORATION_OPTIONS] = (0.4, 0.3, 0.3)
    """Probability of each of epsilon_ends."""
    epsilon_env_steps: Annotated[CountOrNone, EXPLORATION_OPTIONS] = 20_000
    """Env steps of all workers together over which epsilon falls from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        odds = self.epsilon_odds
        if len(self.epsilon_ends) != len(odds) or abs(sum(odds) - 1.0) > 1e-6:
            raise ConfigurationError("epsilon_odds must add up to 1, one for each of epsilon_ends")

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        shape = super().network_options(shape, spec)
        return replace(shape, normalize_returns=self.normalize_returns)


@dataclass(eq=False)
class AsynchronousQ(Objective):
    """Loss over a batch of trajectories [T+1, B], of value-based workers.

    All workers share one target network: `target` is its vector, `refreshes` how many times it was
    overwritten. The worker whose update is the first of a new period overwrites it; the others
    compare `refreshes` and copy. Sarsa does not learn from rows whose next action is not known: the
    last of each trajectory, and truncated ones where the environment resets within the step.
    """

    options: AsynchronousQOptions
    target: np.ndarray
    refreshes: np.ndarray

    def open(self, network: Network) -> None:
        super().open(network)
        self._target = copy.deepcopy(network).requires_grad_(False)
        self._online_entries = [*network.parameters(), *network.buffers()]
        self._target_entries = [*self._target.parameters(), *self._target.buffers()]
        # Frozen parameters and statistics have the order of the trained ones in a network's own.
        self._flat = FlatParameters(self._target)
        self._reader = TrajectoryReader(network)
        self._target_reader = TrajectoryReader(self._target)
        self._seen = -1

    def __call__(self, batch: Tensors) -> Loss:
        self._follow_target()
        q = self._reader.unroll(batch)[0].q_values[:-1]
        with torch.no_grad():
            targets = worker_targets(
                self.options.worker,
                batch["reward"][:-1] * self._network.reward_scale(),
                self._next_q(batch),
                batch["action"][1:],
                batch["terminated"][:-1],
                batch["truncated"][:-1],
                batch["ignored"][:-1],
                self.options.gamma,
                batch[ACTION_MASK][1:] if ACTION_MASK in batch else None,
            )
        td = targets - chosen(q, batch["action"][:-1])
        terms = LOSSES[self.options.td_loss](td)
        loss = reduce_over_valid(terms, self._valid(batch), self.options.reduction)
        metrics = {"td": td.detach().abs().mean(), "value": q.mean(), "q": loss}
        return Loss(loss, metrics)

    def _next_q(self, batch: Tensors) -> Tensor:
        outputs, states = self._target_reader.unroll(batch)
        return self._target_reader.following(batch, outputs.q_values, states, "q_values")

    def _valid(self, batch: Tensors) -> Tensor:
        valid = ~batch["ignored"][:-1]
        if self.options.worker == "sarsa":
            known = batch["terminated"][:-1].clone()
            known[:-1] |= True
            if self._network.spec.same_step_reset:
                known &= batch["terminated"][:-1] | ~batch["truncated"][:-1]
            valid = valid & known
        return valid

    def _follow_target(self) -> None:
        refreshes = int(self.refreshes[0])
        if refreshes != self._seen:
            self._seen = refreshes
            self._flat.load(self.target)

    @torch.no_grad()
    def after_update(self, version: int) -> None:
        due = version // self.options.target_period_updates
        if due <= int(self.refreshes[0]):
            return
        torch._foreach_copy_(self._target_entries, self._online_entries)
        # The weights before their number: a worker that sees the number copies whole weights.
        self.target[:] = self._flat.numpy()
        self.refreshes[0] = self._seen = due
