# SPDX-License-Identifier: Apache-2.0
"""The actor-critic loss of A3C, A2C, GA3C, IMPALA and SEED RL over batches of trajectories.

Mnih et al. 2016 (A3C), Algorithm S3 with the entropy term of section 4; Espeholt et al. 2018
(IMPALA), section 4.2; the floor under pi is GA3C's (Babaeizadeh et al. 2017).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from veldt.losses import Loss, LossOptions, Objective, Tensors
from veldt.losses.corrections import (
    CorrectionConstants,
    clipped_surrogate,
    corrected_targets,
    effective_share,
    floored,
    row_weights,
)
from veldt.losses.returns import reduce_over_valid
from veldt.losses.trajectories import Minibatches, TrajectoryReader, select_rows
from veldt.losses.vtrace import Traces
from veldt.networks import Network, NetworkOptions
from veldt.options import Correction
from veldt.options.checked import Bounds, Fraction, NotNegative, Positive
from veldt.options.groups import LOSS_OPTIONS
from veldt.types import EnvironmentSpec


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
    surrogate: Tensor | None = None,
) -> PolicyGradientLoss:
    """-log pi(a|x) A + value_coefficient (v - V)^2 / 2 - entropy_coefficient H(pi), reduced.

    All tensors are [T, B] (or [B]); gradients flow through `log_probs`, `values` and `entropies`
    only. Rows where `valid` is False are left out. The square carries a factor 1/2: IMPALA's
    baseline cost 0.5 is 0.5 here, while the 0.5 of A3C and A2C, which stands before a plain
    square, is 1.0. `surrogate` takes the place of -log pi A.
    """
    terms = -log_probs * advantages.detach() if surrogate is None else surrogate
    policy = reduce_over_valid(terms, valid, reduction)
    value = reduce_over_valid(0.5 * (targets.detach() - values).square(), valid, reduction)
    entropy = reduce_over_valid(entropies, valid, reduction)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    return PolicyGradientLoss(total, policy, value, entropy)


@dataclass(frozen=True)
class TargetOptions(LossOptions):
    """Correction for policy lag, targets, weights of the loss's terms, normalization."""

    correction: Correction = "vtrace"
    """Correction for policy lag: vtrace, one_step, epsilon (a floor under pi), none, clip (PPO's
    to the policy that acted), decoupled (PPO's to the weights before the batch), tis, icepop, m2po,
    ess (shorter steps) or drop (of old rows)."""
    constants: CorrectionConstants = CorrectionConstants()
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
    def most_lag(self) -> int | None:
        """Rows that are more updates old do not count; None: all do."""
        return self.constants.drop_lag if self.correction == "drop" else None

    @property
    def traces(self) -> Traces:
        return Traces(self.gamma, self.trace_lambda, self.rho_bar, self.c_bar)


@dataclass(frozen=True)
class ActorCriticOptions(TargetOptions):
    """The policy gradient, taken once from each batch."""

    policy_clip: Annotated[Positive, LOSS_OPTIONS] = 0.2
    """clip and decoupled: the ratio of policies is clipped to [1/(1+e), 1+e]."""
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
        self._version = 0

    def constants(self) -> Hashable | None:
        return self._reader.constants(self.options)

    def adjust_entropy(self, coefficient: float) -> None:
        self.options = replace(self.options, entropy_coefficient=coefficient)

    def after_update(self, version: int) -> None:
        self._version = version

    def _young_rows(self, batch: Tensors, most_lag: int) -> Tensor:
        """Rows of at most this lag [T, B]; a trajectory's version holds for all its columns."""
        lag = self._version - batch["parameter_version"][:-1]
        columns = batch["ignored"].shape[1] // lag.shape[1]
        return (lag <= most_lag)[:, :, None].expand(-1, -1, columns).flatten(1)


def young_share(valid: Tensor, ignored: Tensor) -> Tensor:
    """The valid share of the rows that are not reset rows."""
    return valid.sum() / (~ignored).sum().clamp(min=1)


@dataclass(eq=False)
class ActorCritic(OverTrajectories):
    """The policy gradient with targets corrected for lag.

    With several passes the correction also covers what the steps before have changed: targets and
    weights are computed anew for each minibatch. With old rows (`drop`) or a small effective sample
    size (`ess`) the step is shorter.

    Args:
        options: Discount, correction, weights of the terms and reduction.
    """

    options: ActorCriticOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._random = torch.Generator().manual_seed(self.seed)
        self._states = [f"state.{name}" for name in network.state_fields()]

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        options = self.options
        if options.most_lag is not None:
            batch = {**batch, "young": self._young_rows(batch, options.most_lag)}
        if options.correction == "decoupled":
            with torch.no_grad():
                batch = {**batch, "centre_log_prob": self._reader.evaluate(batch).log_probs}
        epochs, minibatches = options.steps_per_batch
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
        valid = ~seen.ignored
        if "young" in batch:
            valid = valid & batch["young"]
        targets = corrected_targets(options.correction, seen.log_rhos, seen.rows, options.traces)
        weights = row_weights(
            options.correction, seen.log_rhos, valid, options.rho_bar, options.constants
        )
        advantages = targets.advantages if weights is None else targets.advantages * weights
        surrogate = None
        if options.correction in ("clip", "decoupled"):
            centre = batch.get("centre_log_prob", seen.behaviour)
            log_ratios = (seen.log_probs - centre).masked_fill(~valid, 0.0)
            surrogate = clipped_surrogate(log_ratios, advantages, options.policy_clip)
        loss = policy_gradient_loss(
            floored(options.correction, seen.log_probs),
            advantages,
            seen.values,
            targets.vs,
            network.distribution.entropy(seen.logits),
            valid,
            options.value_coefficient,
            options.entropy_coefficient,
            options.reduction,
            surrogate,
        )
        metrics = {"policy": loss.policy, "value": loss.value, "entropy": loss.entropy}
        scale: float | Tensor = 1.0
        if options.correction == "drop":
            scale = young_share(valid, seen.ignored)
            metrics["too_old_fraction"] = 1.0 - scale
        elif options.correction == "ess":
            metrics["effective_share"] = effective_share(seen.log_rhos, valid)
            scale = metrics["effective_share"].sqrt()
        return Loss(loss.total, metrics, learning_rate_scale=scale)
