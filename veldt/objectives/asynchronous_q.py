# SPDX-License-Identifier: Apache-2.0
"""Action values from trajectories: A3C's one-step Q, n-step Q and one-step Sarsa workers, whose
target network lies in memory that all of them share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from veldt.algorithms.q_learning import LOSSES, chosen, worker_targets
from veldt.algorithms.reduction import reduce_over_valid
from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, Network
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.actor_critic import ActorCriticOptions
from veldt.objectives.trajectories import TrajectoryReader
from veldt.options.checked import Count, CountOrNone, Fraction, Options
from veldt.topology import Topology
from veldt.types import ACTION_MASK

_KINDS = {"one_step_q": "one_step", "n_step_q": "n_step", "one_step_sarsa": "sarsa"}


@dataclass(frozen=True)
class AsynchronousQOptions(Options):
    """What value-based workers compute and how they explore."""

    td_loss: Literal["squared", "huber", "clipped"] = "squared"
    """Q and Sarsa workers: squared, huber or clipped."""
    target_period_updates: Count = 200
    """Q and Sarsa workers: updates of all workers between two copies into the target network."""
    epsilon_ends: tuple[Fraction, ...] = (0.1, 0.01, 0.5)
    """Q and Sarsa workers: where epsilon ends, drawn once per worker."""
    epsilon_odds: tuple[Fraction, ...] = (0.4, 0.3, 0.3)
    """Q and Sarsa workers: how likely each of these ends is."""
    epsilon_env_steps: CountOrNone = 20_000
    """Q and Sarsa workers: env steps of a worker over which epsilon falls from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        odds = self.epsilon_odds
        if len(self.epsilon_ends) != len(odds) or abs(sum(odds) - 1.0) > 1e-6:
            raise ConfigurationError("epsilon_odds must add up to 1, one for each of epsilon_ends")


@dataclass(eq=False)
class AsynchronousQ(Objective):
    """Loss over a batch of trajectories [T+1, B], with gamma and reduction of `loss`.

    `target` is the vector of the target network that all workers share, `refreshes` how many times
    it was refreshed. Whichever worker's update is the first of a new period refreshes it; the
    others notice and copy. Sarsa does not learn from rows whose next action is not known yet: the
    last of each trajectory, and truncated ones where the environment resets within the step."""

    algorithm: str
    options: AsynchronousQOptions
    loss: ActorCriticOptions
    target: np.ndarray
    refreshes: np.ndarray

    def open(self, network: Network) -> None:
        super().open(network)
        self._kind = _KINDS[self.algorithm]
        self._target = copy.deepcopy(network).requires_grad_(False)
        self._online_entries = [*network.parameters(), *network.buffers()]
        self._target_entries = [*self._target.parameters(), *self._target.buffers()]
        # Frozen parameters and statistics have the order of the trained ones in a network's own.
        self._flat = FlatParameters(self._target)
        self._reader, self._target_reader = (
            TrajectoryReader(network),
            TrajectoryReader(self._target),
        )
        self._seen = -1

    def __call__(self, batch: Tensors) -> Loss:
        self._follow_target()
        q = self._reader.unroll(batch)[0].q_values[:-1]
        with torch.no_grad():
            targets = worker_targets(
                self._kind,
                batch["reward"][:-1] * self._network.reward_scale(),
                self._next_q(batch),
                batch["action"][1:],
                batch["terminated"][:-1],
                batch["truncated"][:-1],
                batch["ignored"][:-1],
                self.loss.gamma,
                batch[ACTION_MASK][1:] if ACTION_MASK in batch else None,
            )
        td = targets - chosen(q, batch["action"][:-1])
        terms = LOSSES[self.options.td_loss](td)
        loss = reduce_over_valid(terms, self._valid(batch), self.loss.reduction)
        metrics = {"td": td.detach().abs().mean(), "value": q.mean(), "q": loss}
        return Loss(loss, metrics)

    def _next_q(self, batch: Tensors) -> Tensor:
        outputs, states = self._target_reader.unroll(batch)
        return self._target_reader.following(batch, outputs.q_values, states, "q_values")

    def _valid(self, batch: Tensors) -> Tensor:
        valid = ~batch["ignored"][:-1]
        if self._kind == "sarsa":
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
        self.refreshes[0] = self._seen = due
        torch._foreach_copy_(self._target_entries, self._online_entries)
        self.target[:] = self._flat.numpy()


def asynchronous_q(
    topology: Topology, algorithm: str, options: AsynchronousQOptions, loss: ActorCriticOptions
) -> AsynchronousQ:
    """Lay out the target network in memory that all workers share; what each of them minimises."""
    target = topology.share("target", topology.network.initial_vector())
    refreshes = topology.share("target.refreshes", np.zeros(1, np.int64))
    return AsynchronousQ(algorithm, options, loss, target.end, refreshes.end)
