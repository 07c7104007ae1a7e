# SPDX-License-Identifier: Apache-2.0
"""The actor-critic loss of A3C, A2C, GA3C, IMPALA and SEED RL over batches of trajectories.

Mnih et al. 2016 (A3C), Algorithm S3 with the entropy term of section 4; Espeholt et al. 2018
(IMPALA), section 4.2; the floor under pi is GA3C's (Babaeizadeh et al. 2017).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from veldt.losses import Loss, LossOptions, Objective, Tensors
from veldt.losses.returns import reduce_over_valid
from veldt.losses.trajectories import Minibatches, TrajectoryReader, select_rows
from veldt.losses.vtrace import Traces, corrected_targets
from veldt.networks import Network, NetworkOptions
from veldt.options.checked import Bounds, Fraction, NotNegative, Positive
from veldt.options.groups import LOSS_OPTIONS
from veldt.types import EnvironmentSpec

_EPSILON_FLOOR = 1e-6


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
    only. Rows where `valid` is False are left out. The square carries a factor 1/2: IMPALA's
    baseline cost 0.5 is 0.5 here, while the 0.5 of A3C and A2C, which stands before a plain
    square, is 1.0. `probability_floor` > 0 replaces log pi by log(max(pi, floor)), which stops the
    gradient of actions whose probability is below it (GA3C: 1e-6).
    """
    if probability_floor > 0.0:
        log_probs = log_probs.clamp(min=math.log(probability_floor))
    policy = reduce_over_valid(-log_probs * advantages.detach(), valid, reduction)
    value = reduce_over_valid(0.5 * (targets.detach() - values).square(), valid, reduction)
    entropy = reduce_over_valid(entropies, valid, reduction)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    return PolicyGradientLoss(total, policy, value, entropy)


@dataclass(frozen=True)
class TargetOptions(LossOptions):
    """Targets of policy and value, weights of the loss's terms, normalization."""

    rho_bar: Annotated[Positive, LOSS_OPTIONS] = 1.0
    """Clip of the importance weight that decides which policy is evaluated."""
    c_bar: Annotated[Positive, LOSS_OPTIONS] = 1.0
    """Clip of the importance weight that decides how far corrections travel."""
    trace_lambda: Fraction = 1.0
    """Decay of the trace; 1: full n-step corrections. Below 1 the policy's advantage bootstraps
    from the lambda-return of the next row, as in V-trace, which is not GAE."""
    value_coefficient: Annotated[NotNegative, LOSS_OPTIONS] = 0.5
    """Weight of half the squared value error."""
    entropy_coefficient: NotNegative = 0.01
    """Weight of the entropy bonus."""
    normalize_returns: Annotated[bool, LOSS_OPTIONS] = False
    """Scale rewards by the spread of the discounted return, as seen by all actors."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        shape = super().network_options(shape, spec)
        return replace(shape, normalize_returns=self.normalize_returns)

    @property
    def traces(self) -> Traces:
        return Traces(self.gamma, self.trace_lambda, self.rho_bar, self.c_bar)


@dataclass(frozen=True)
class ActorCriticOptions(TargetOptions):
    """The correction for policy lag."""

    correction: Literal["vtrace", "one_step", "epsilon", "none"] = "vtrace"
    """Off-policy correction: vtrace, one_step, epsilon (a floor under pi) or none."""
    reduction: Annotated[Literal["mean", "sum"], LOSS_OPTIONS] = "mean"
    """mean or sum over rows; learning rates are not portable between the two."""

    @property
    def steps_per_batch(self) -> tuple[int, int]:
        """Passes over each batch, and minibatches of each pass."""
        return 1, 1


@dataclass(frozen=True)
class VTraceOptions(ActorCriticOptions):
    """Several passes over each batch, whose targets follow the weights of each step."""

    epochs: Annotated[int, Bounds(1, 100)] = 1
    """Passes over each batch."""
    minibatches: Annotated[int, Bounds(1, 10_000)] = 1
    """Parts of the batch, whole trajectories shuffled anew in each epoch, that make one gradient
    step each."""

    @property
    def steps_per_batch(self) -> tuple[int, int]:
        return self.epochs, self.minibatches


@dataclass(eq=False)
class OverTrajectories(Objective):
    """A loss of policy and value over a batch of trajectories [T+1, B]."""

    options: TargetOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._reader = TrajectoryReader(network)

    def constants(self) -> Hashable | None:
        return self._reader.constants(self.options)

    def adjust_entropy(self, coefficient: float) -> None:
        self.options = replace(self.options, entropy_coefficient=coefficient)


@dataclass(eq=False)
class ActorCritic(OverTrajectories):
    """The policy gradient with targets corrected for lag.

    With several passes the correction also covers what the steps before have changed: targets
    are computed anew for each minibatch.

    Args:
        options: Discount, correction, weights of the terms and reduction.
    """

    options: ActorCriticOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._random = torch.Generator().manual_seed(self.seed)
        self._states = [f"state.{name}" for name in network.state_fields()]

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        epochs, minibatches = self.options.steps_per_batch
        if epochs * minibatches == 1:
            yield batch
            return
        columns = batch["ignored"].shape[1]
        states = {name: batch[name] for name in self._states}
        # The version is one entry per trajectory, not per column, and the loss does not read it.
        rows = {
            name: entry
            for name, entry in batch.items()
            if name not in states and entry.shape[1] == columns and name != "parameter_version"
        }
        parts = Minibatches(rows, states, minibatches, whole_columns=True)
        for _ in range(epochs):
            yield from parts.shuffled(self._random)

    def __call__(self, batch: Tensors) -> Loss:
        options, network = self.options, self._network
        assert network.distribution is not None
        batch = select_rows(batch, whole_columns=True)
        seen = self._reader.evaluate(batch)
        targets = corrected_targets(options.correction, seen.log_rhos, seen.rows, options.traces)
        loss = policy_gradient_loss(
            seen.log_probs,
            targets.advantages,
            seen.values,
            targets.vs,
            network.distribution.entropy(seen.logits),
            ~seen.ignored,
            options.value_coefficient,
            options.entropy_coefficient,
            options.reduction,
            _EPSILON_FLOOR if options.correction == "epsilon" else 0.0,
        )
        metrics = {"policy": loss.policy, "value": loss.value, "entropy": loss.entropy}
        return Loss(loss.total, metrics)
