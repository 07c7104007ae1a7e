# SPDX-License-Identifier: Apache-2.0
"""PPO's clipped loss: epochs of shuffled minibatches (PPO), or one step on V-trace targets (APPO).

Schulman et al. 2017 (PPO), equation 7, with the clip range [1/(1+e), 1+e] that is symmetric in
log pi/mu, clipped values and normalized advantages of Petrenko et al. 2020 (Sample Factory).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from veldt.errors import ConfigurationError
from veldt.losses import Loss, Objective, Tensors
from veldt.losses.actor_critic import (
    ActorCriticOptions,
    OverTrajectories,
    TargetOptions,
    young_share,
)
from veldt.losses.corrections import (
    clipped_surrogate,
    corrected_targets,
    effective_share,
    floored,
    row_weights,
)
from veldt.losses.returns import Rows, discounts, reduce_over_valid
from veldt.losses.trajectories import Evaluated, Minibatches, select_rows
from veldt.losses.vtrace import Traces, VTrace
from veldt.networks import Network, NetworkOptions, PolicyValueNetwork
from veldt.options import Correction
from veldt.options.checked import Bounds, Count, NotNegative, Options, Positive
from veldt.options.groups import LOSS_OPTIONS, PPO_OPTIONS
from veldt.role import Arrays
from veldt.types import EnvironmentSpec


class PPOLoss(NamedTuple):
    """Scalars; `total` as in PolicyGradientLoss. The last two are measurements without gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    clipped_fraction: Tensor
    """Share of valid rows whose ratio is outside the clip range."""
    divergence: Tensor
    """Estimate of KL(mu || pi) = E_mu[ratio - 1 - log ratio], never negative."""


@torch.no_grad()
def ppo_targets(log_rhos: Tensor, rows: Rows, traces: Traces, correction: str = "vtrace") -> VTrace:
    """Targets of a correction and their advantages without the first ratio; all [T, B].

    A_s = r_s + gamma V(x_{s+1}) - V(x_s) + gamma lambda (v_{s+1} - V(x_{s+1})). Where pi = mu this
    is generalized advantage estimation, and v_s = V(x_s) + A_s; lag cuts the traces.
    """
    vs, _ = corrected_targets(correction, log_rhos, rows, traces)
    rewards, values, next_values, terminated, truncated, ignored = rows
    discount = discounts(terminated, traces.gamma, values.dtype)
    advantages = torch.addcmul(rewards, discount, next_values).sub_(values)
    decays = discount.mul_(traces.lambda_).masked_fill_(truncated | ignored, 0.0)
    advantages[:-1].addcmul_(decays[:-1], (vs - values)[1:])
    return VTrace(vs, advantages.masked_fill_(ignored, 0.0))


def scale_by_divergence(
    scale: float, divergence: float, target: float, least: float = 0.01, most: float = 10.0
) -> float:
    """The learning rate's next scale, which follows the policy's change (rl_games' rule).

    It falls when the KL was above twice the `target` and rises when it was below half of it.
    """
    if divergence > 2.0 * target:
        return max(scale / 1.5, least)
    if divergence < 0.5 * target:
        return min(scale * 1.5, most)
    return scale


@torch.no_grad()
def normalize_advantages(advantages: Tensor, valid: Tensor | None, epsilon: float = 1e-5) -> Tensor:
    """Shift and scale to mean 0, deviation 1 over valid rows, [T, B]; invalid rows become 0."""
    mean = reduce_over_valid(advantages, valid)
    centred = advantages - mean
    if valid is not None:
        centred = torch.where(valid, centred, 0.0)
    deviation = reduce_over_valid(centred.square(), valid).sqrt()
    return centred / (deviation + epsilon)


def clipped_value_error(
    values: Tensor, old_values: Tensor, targets: Tensor, value_clip: float
) -> Tensor:
    """max of (V - v)^2 / 2 and the same with V within +-value_clip of `old_values`; [T, B].

    `value_clip` 0: the plain error.
    """
    if value_clip <= 0.0:
        return 0.5 * (values - targets).square()
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return 0.5 * torch.maximum((values - targets).square(), (near - targets).square())


def ppo_loss(
    log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    targets: Tensor,
    entropies: Tensor,
    valid: Tensor | None,
    clip: float,
    value_clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
    reduction: str = "mean",
    normalize: bool = True,
) -> PPOLoss:
    """Clipped surrogate + value_coefficient * clipped value error - entropy_coefficient * H(pi).

    All tensors are [T, B]; gradients flow through `log_probs`, `values` and `entropies` only.
    `advantages` must not contain pi/mu already (`vtrace(weighted=False)`). `old_values` are V at
    acting time. The value error carries 1/2, so Sample Factory's coefficient 0.5 is 1.0 here.
    """
    log_ratios = log_probs - behaviour_log_probs.detach()
    advantages, targets, old_values = advantages.detach(), targets.detach(), old_values.detach()
    if valid is not None:
        log_ratios = torch.where(valid, log_ratios, 0.0)
    if normalize:
        advantages = normalize_advantages(advantages, valid)
    surrogate = clipped_surrogate(log_ratios, advantages, clip)
    policy = reduce_over_valid(surrogate, valid, reduction)
    errors = clipped_value_error(values, old_values, targets, value_clip)
    value = reduce_over_valid(errors, valid, reduction)
    entropy = reduce_over_valid(entropies, valid, reduction)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    with torch.no_grad():
        outside = (log_ratios.abs() > math.log1p(clip)).to(log_ratios.dtype)
        clipped_fraction = reduce_over_valid(outside, valid)
        divergence = reduce_over_valid(log_ratios.expm1() - log_ratios, valid)
    return PPOLoss(total, policy, value, entropy, clipped_fraction, divergence)


@dataclass(frozen=True)
class PPOOptions(Options):
    """Size of a step, number of passes over a batch and minibatches of each pass."""

    epochs: Annotated[int, Bounds(1, 100)] = 1
    """Passes over each batch."""
    minibatches: Annotated[int, Bounds(1, 10_000)] = 1
    """Parts of the batch, shuffled anew in each epoch, that make one gradient step each."""
    ppo_clip: Positive = 0.2
    """The ratio of policies is clipped to [1/(1+e), 1+e]."""
    value_clip: Annotated[NotNegative, PPO_OPTIONS] = 0.0
    """How far a value may move within a batch; 0: no limit. With several passes in deviations
    of the targets, with one in units of the value."""
    normalize_advantages: Annotated[bool, PPO_OPTIONS] = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""
    normalize_values: Annotated[bool, PPO_OPTIONS] = False
    """With several passes: the network predicts values in units of the targets seen so far."""
    target_kl: Annotated[NotNegative, PPO_OPTIONS] = 0.01
    """With several passes: KL per epoch towards which the learning rate is adapted; 0: fixed."""
    max_learning_rate_scale: Annotated[float, Bounds(1.0, 1000.0), PPO_OPTIONS] = 10.0
    """Largest factor on `learning_rate` that target_kl may reach; 1: it decreases only."""
    stop_kl: Annotated[NotNegative, PPO_OPTIONS] = 0.0
    """No further epoch of a batch once the policy has changed by this KL; 0: all epochs."""
    max_policy_lag: Annotated[Count, PPO_OPTIONS] = 1000
    """Rows that are this many updates old or older are masked out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_values and not self.has_passes:
            raise ConfigurationError(
                "normalize_values needs several passes over a batch; raise epochs or minibatches"
            )

    @property
    def has_passes(self) -> bool:
        """Whether a batch gives more than one gradient step."""
        return self.epochs * self.minibatches > 1


@dataclass(frozen=True)
class ClippedOptions(TargetOptions):
    """PPO's loss on V-trace targets. The value error carries 1/2: 0.5 elsewhere is 1 here."""

    correction: Correction = "clip"
    value_coefficient: Annotated[NotNegative, LOSS_OPTIONS] = 1.0
    """Weight of half the squared value error."""
    ppo: PPOOptions = PPOOptions()

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        shape = super().network_options(shape, spec)
        return replace(shape, normalize_values=self.ppo.normalize_values)


@dataclass(frozen=True)
class SynchronousOptions(ActorCriticOptions):
    """A2C's loss, or PPO's where a batch gives several gradient steps (`clip`: as published)."""

    ppo: PPOOptions = PPOOptions()

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        shape = super().network_options(shape, spec)
        return replace(shape, normalize_values=self.ppo.normalize_values)


@dataclass(eq=False)
class Clipped(OverTrajectories):
    """Base of PPO and APPO, which mask rows of a batch [T+1, B] that are too old."""

    options: ClippedOptions | SynchronousOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, PolicyValueNetwork)
        super().open(network)
        self._network: PolicyValueNetwork = network
        self._version = 0

    def _valid_rows(self, batch: Tensors, ignored: Tensor) -> Tensor:
        """Rows that are below the bounds on lag and no reset rows [T, B]."""
        most_lag = self.options.ppo.max_policy_lag - 1
        if self.options.most_lag is not None:
            most_lag = min(most_lag, self.options.most_lag)
        return ~ignored & self._young_rows(batch, most_lag)

    def _corrected(
        self, seen: Evaluated, advantages: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Reference policy of the clip and weighted advantages, [T, B].

        `clip` keeps near the policy that acted. The others keep near the weights that see the batch
        first, at which the gradient is that of weight times advantage."""
        options = self.options
        if options.ppo.normalize_advantages:
            advantages = normalize_advantages(advantages, valid)
        if options.correction == "clip":
            return seen.behaviour, advantages
        weights = row_weights(
            options.correction, seen.log_rhos, valid, options.rho_bar, options.constants
        )
        centre = floored(options.correction, seen.log_probs.detach())
        return centre, advantages if weights is None else advantages * weights


@dataclass(eq=False)
class Appo(Clipped):
    """Asynchronous PPO (Sample Factory): one step per batch, on V-trace targets.

    The learning rate is scaled by the share of rows that are young enough, so that a batch with
    few such rows takes a short step.

    Args:
        options: Discount, clip ranges, weights of the terms and the bound on lag.
    """

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        return ({**batch, "young": self._valid_rows(batch, batch["ignored"][:-1])},)

    def __call__(self, batch: Tensors) -> Loss:
        options, network = self.options, self._network
        seen = self._reader.evaluate(batch)
        targets = corrected_targets(options.correction, seen.log_rhos, seen.rows, options.traces)
        valid = batch["young"]
        centre, advantages = self._corrected(seen, targets.advantages, valid)
        loss = ppo_loss(
            floored(options.correction, seen.log_probs),
            centre,
            advantages,
            seen.values,
            batch["behaviour_value"][:-1],
            targets.vs,
            network.distribution.entropy(seen.logits),
            valid,
            options.ppo.ppo_clip,
            options.ppo.value_clip,
            options.value_coefficient,
            options.entropy_coefficient,
            normalize=False,
        )
        share = young_share(valid, seen.ignored)
        if options.correction == "ess":
            share = share * effective_share(seen.log_rhos, valid).sqrt()
        return Loss(loss.total, _metrics(loss, loss.divergence, share), learning_rate_scale=share)


@dataclass(eq=False)
class PPO(Clipped):
    """PPO with several passes over each batch [T+1, B].

    Targets and advantages are computed once per batch, with the weights before its first step;
    `passes` then yields minibatches and the loss is taken on each of them. The KL is always taken
    to the weights before the first step, because only that change is due to these steps.

    Args:
        options: Discount, clip ranges, weights of the terms, epochs and minibatches.
        without_lag: Whether all rows were generated with the newest weights and stored their
            values, so that they are not evaluated again.
    """

    without_lag: bool = False

    def open(self, network: Network) -> None:
        super().open(network)
        self._recalls = self.without_lag and network.core is None
        self._states = [f"state.{name}" for name in network.state_fields()]
        self._random = torch.Generator().manual_seed(self.seed)
        # Invalid rows are left out, or masked: a recorded CUDA graph has one shape, and a
        # recurrent network needs every row.
        on_cpu = next(network.parameters()).is_cpu
        self._masks = network.core is not None or not on_cpu
        self._scale = 1.0
        self._divergences: list[Tensor] = []

    def constants(self) -> Hashable | None:
        return self.options  # the ends of episodes are read once, before the passes

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        ppo, rows = self.options.ppo, self._prepared(batch)
        states = {name: batch[name] for name in self._states}
        valid, counted = rows["valid"], None
        if not self._masks and valid.any():
            counted = valid
            self._share = young_share(valid, rows["ignored"])
            del rows["valid"], rows["ignored"]
        has_memory = self._network.core is not None
        parts = Minibatches(rows, states, ppo.minibatches, has_memory, counted)
        for _ in range(ppo.epochs):
            self._divergences.clear()
            yield from parts.shuffled(self._random)
            if not self._continues():
                return

    @torch.no_grad()
    def _prepared(self, batch: Tensors) -> Tensors:
        """All that the loss needs, [T, B, ...]."""
        options, network = self.options, self._network
        seen = self._reader.recall(batch) if self._recalls else self._reader.evaluate(batch)
        targets = ppo_targets(seen.log_rhos, seen.rows, options.traces, options.correction)
        valid = self._valid_rows(batch, seen.ignored)
        centre, advantages = self._corrected(seen, targets.advantages, valid)
        network.update_value_statistics(targets.vs, valid)
        inputs = {name: batch[name][:-1] for name in (*network.input_names, "first")}
        scale = network.value_scale()  # the unit of the value's error
        if options.correction == "ess":
            inputs["step_scale"] = effective_share(seen.log_rhos, valid).sqrt().expand_as(valid)
        return {
            **inputs,
            "action": batch["action"][:-1],
            "centre_log_prob": centre,
            "start_logits": seen.logits,
            "start_value": seen.values / scale,
            "advantage": advantages,
            "target": targets.vs / scale,
            "ignored": seen.ignored,
            "valid": valid,
        }

    def __call__(self, batch: Tensors) -> Loss:
        """The loss on one minibatch of `passes`."""
        options, network = self.options, self._network
        batch = select_rows(batch, network.core is not None)
        valid = batch.get("valid")
        outputs = self._outputs(batch)
        log_probs, entropies = self._policy(outputs.logits, batch["action"])
        loss = ppo_loss(
            floored(options.correction, log_probs),
            batch["centre_log_prob"],
            batch["advantage"],
            outputs.value / network.value_scale(),
            batch["start_value"],
            batch["target"],
            entropies,
            valid,
            options.ppo.ppo_clip,
            options.ppo.value_clip,
            options.value_coefficient,
            options.entropy_coefficient,
            normalize=False,
        )
        with torch.no_grad():
            kl = network.distribution.kl(batch["start_logits"], outputs.logits)
            divergence = reduce_over_valid(kl, valid)
            share = self._share if valid is None else young_share(valid, batch["ignored"])
            if options.correction == "ess":
                share = share * batch["step_scale"].flatten()[0]
        return Loss(loss.total, _metrics(loss, divergence, share), learning_rate_scale=share)

    def _policy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities and entropies of the rows.

        Without an entropy bonus the entropy is only reported, and -log pi of the actions taken
        estimates it: a squashed normal's own entropy costs more than the loss.
        """
        distribution = self._network.distribution
        if self.options.entropy_coefficient:
            return distribution.log_prob_and_entropy(logits, action)
        log_probs = distribution.log_prob(logits, action)
        return log_probs, -log_probs.detach()

    def learning_rate_scale(self) -> float:
        return self._scale

    def after_loss(self, loss: Loss) -> Loss:
        self._divergences.append(loss.metrics["kl"].clone())
        metrics = {**loss.metrics, "learning_rate_scale": torch.tensor(self._scale)}
        return loss._replace(metrics=metrics)

    def _outputs(self, batch: Tensors) -> Any:
        if self._network.core is None:
            return self._network.step(batch, (), batch["first"])[0]
        state = tuple(batch[name] for name in self._states)
        return self._network.unroll(batch, state, batch["first"])[0]

    def _continues(self) -> bool:
        """After an epoch: adapt the learning rate; False when the policy has changed enough."""
        ppo = self.options.ppo
        # Reading the divergence waits for the device.
        if not (ppo.target_kl or ppo.stop_kl):
            return True
        divergence = float(torch.stack(self._divergences).mean())
        if ppo.target_kl:
            most = ppo.max_learning_rate_scale
            self._scale = scale_by_divergence(self._scale, divergence, ppo.target_kl, most=most)
        return not ppo.stop_kl or divergence <= ppo.stop_kl

    def state(self) -> Arrays:
        return {"learning_rate_scale": np.array(self._scale), "version": np.array(self._version)}

    def load_state(self, state: Arrays) -> None:
        self._scale, self._version = float(state["learning_rate_scale"]), int(state["version"])


def _metrics(loss: PPOLoss, divergence: Tensor, share: Tensor) -> Tensors:
    return {
        "policy": loss.policy,
        "value": loss.value,
        "entropy": loss.entropy,
        "clipped_fraction": loss.clipped_fraction,
        "kl": divergence,
        "too_old_fraction": 1.0 - share,
    }


def clipped(options: ClippedOptions) -> Objective:
    """Sample Factory's loss: one step per batch, or PPO's passes over it."""
    return PPO(options) if options.ppo.has_passes else Appo(options)
