# SPDX-License-Identifier: Apache-2.0
"""PQN's loss: Q(lambda) targets of fresh trajectories, without a target network.

Gallici et al. 2024 (PQN), Algorithm 1; the targets are Peng's Q(lambda), section 4.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from veldt.losses import Loss, LossOptions, Objective, Tensors
from veldt.losses.q_learning import bootstrap_values, chosen, squared
from veldt.losses.returns import Rows, accumulate_backward, continues, discounts, reduce_over_valid
from veldt.losses.trajectories import Minibatches, TrajectoryReader, select_rows
from veldt.networks import Network, NetworkOptions
from veldt.options.checked import Bounds, Fraction
from veldt.options.groups import LOSS_OPTIONS
from veldt.types import ACTION_MASK, EnvironmentSpec


@torch.no_grad()
def q_lambda_targets(rows: Rows, gamma: float, lambda_: float) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V(x_{t+1}) + lambda G_{t+1}), V = max_a Q; all [T, B].

    The last row of a trajectory and of an episode bootstraps from V alone; ignored rows give 0.
    """
    flows = continues(rows.terminated, rows.truncated, rows.ignored)
    discount = discounts(rows.terminated, gamma, rows.rewards.dtype)
    decays = discount * flows * lambda_
    terms = rows.rewards + (discount - decays) * rows.next_values
    return accumulate_backward(terms.masked_fill_(rows.ignored, 0.0), decays)


@dataclass(frozen=True)
class PQNOptions(LossOptions):
    """Targets, passes over a batch and normalization of layers."""

    trace_lambda: Fraction = 0.65
    """Share of the next row's return in a target; 0: one-step Q-learning."""
    epochs: Annotated[int, Bounds(1, 100)] = 2
    """Passes over each batch."""
    minibatches: Annotated[int, Bounds(1, 10_000)] = 32
    """Parts of the batch, shuffled anew in each epoch, that make one gradient step each."""
    layer_norm: Annotated[bool, LOSS_OPTIONS] = True
    """Normalize each layer before its activation, which takes the target network's place."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        return replace(super().network_options(shape, spec), layer_norm=self.layer_norm)


@dataclass(eq=False)
class PQN(Objective):
    """Loss over a batch of trajectories [T+1, B], in several passes.

    Targets are computed once per batch, with the weights before its first step.

    Args:
        options: Discount, lambda, epochs and minibatches.
    """

    options: PQNOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._reader = TrajectoryReader(network)
        self._random = torch.Generator().manual_seed(self.seed)

    def constants(self) -> Hashable | None:
        return self.options

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        rows = {name: batch[name][:-1] for name in (*self._network.input_names, "first", "action")}
        rows["target"], rows["valid"] = self._targets(batch), ~batch["ignored"][:-1]
        parts = Minibatches(rows, {}, self.options.minibatches, whole_columns=False)
        for _ in range(self.options.epochs):
            yield from parts.shuffled(self._random)

    @torch.no_grad()
    def _targets(self, batch: Tensors) -> Tensor:
        reader, options = self._reader, self.options
        outputs, states = reader.unroll(batch)
        following = reader.following(batch, outputs.q_values, states, "q_values")
        mask = batch[ACTION_MASK][1:] if ACTION_MASK in batch else None
        values = bootstrap_values(None, following, False, mask)
        rewards = batch["reward"][:-1] * self._network.reward_scale()
        flags = (batch[name][:-1] for name in ("terminated", "truncated", "ignored"))
        return q_lambda_targets(
            Rows(rewards, values, values, *flags), options.gamma, options.trace_lambda
        )

    def __call__(self, batch: Tensors) -> Loss:
        batch = select_rows(batch, whole_columns=False)
        q = self._network.step(batch, (), batch["first"])[0].q_values
        td = batch["target"] - chosen(q, batch["action"])
        loss = reduce_over_valid(squared(td), batch["valid"])
        metrics = {"td": td.detach().abs().mean(), "value": q.detach().mean(), "q": loss}
        return Loss(loss, metrics)
