# SPDX-License-Identifier: Apache-2.0
"""Policy and value from trajectories: A3C, A2C, GA3C, IMPALA and SEED's V-trace learner."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

from veldt.algorithms.policy_gradient import policy_gradient_loss
from veldt.algorithms.vtrace import Traces, corrected_targets
from veldt.networks import Network
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.trajectories import TrajectoryReader
from veldt.options.checked import Fraction, NotNegative, Options, Positive

_EPSILON_FLOOR = 1e-6


@dataclass(frozen=True)
class TargetOptions(Options):
    """What targets of policy and value are, how the losses are weighed, what is normalised."""

    gamma: Fraction = 0.99
    """Discount per environment step."""
    rho_bar: Positive = 1.0
    """Clip of the importance weight that decides which policy is evaluated."""
    c_bar: Positive = 1.0
    """Clip of the importance weight that decides how far corrections travel."""
    trace_lambda: Fraction = 1.0
    """Decay of the trace; 1: full n-step corrections. Below 1 the policy's advantage bootstraps
    from the lambda-return of the next row, as in V-trace, which is not GAE."""
    value_coefficient: NotNegative = 0.5
    """Weight of half the squared value error."""
    entropy_coefficient: NotNegative = 0.01
    """Weight of the entropy bonus."""
    normalize_returns: bool = False
    """Scale rewards by the spread of the discounted return, as seen by all actors."""
    normalize_observations: bool = False
    """Scale vectors by statistics shared by all actors."""
    normalize_images: bool = False
    """Scale each pixel by statistics shared by all actors."""

    @property
    def traces(self) -> Traces:
        return Traces(self.gamma, self.trace_lambda, self.rho_bar, self.c_bar)


@dataclass(frozen=True)
class ActorCriticOptions(TargetOptions):
    """How targets are corrected for lag."""

    correction: Literal["vtrace", "one_step", "epsilon", "none"] = "vtrace"
    """Off-policy correction: vtrace, one_step, epsilon (a floor under pi) or none."""
    reduction: Literal["mean", "sum"] = "mean"
    """mean or sum over rows; learning rates are not portable between the two."""


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
    """The policy gradient with targets corrected for lag."""

    options: ActorCriticOptions

    def __call__(self, batch: Tensors) -> Loss:
        options, network = self.options, self._network
        assert network.distribution is not None
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
