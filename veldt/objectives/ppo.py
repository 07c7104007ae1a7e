# SPDX-License-Identifier: Apache-2.0
"""PPO that uses its data well: several epochs of shuffled minibatches over each batch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from veldt.algorithms.ppo import normalize_advantages, ppo_loss, ppo_targets, scale_by_divergence
from veldt.algorithms.reduction import reduce_over_valid
from veldt.errors import ConfigurationError
from veldt.networks import Network, PolicyValueNetwork
from veldt.objectives import Loss, Tensors
from veldt.objectives.actor_critic import ActorCriticOptions, OverTrajectories, TargetOptions
from veldt.objectives.minibatches import Minibatches, chosen
from veldt.options.checked import Bounds, Count, NotNegative, Options, Positive
from veldt.role import Arrays


@dataclass(frozen=True)
class PPOOptions(Options):
    """How far a step may go, and how often and in which pieces a batch is learned from."""

    epochs: Annotated[int, Bounds(1, 100)] = 1
    """Times that each batch is learned from."""
    minibatches: Annotated[int, Bounds(1, 10_000)] = 1
    """Parts of the batch, shuffled anew in each epoch, that make a gradient step each."""
    ppo_clip: Positive = 0.2
    """The ratio of policies counts within [1/(1+e), 1+e]."""
    trust_region: Literal["acting", "newest"] = "acting"
    """With several passes: which policy steps stay near, the one that acted, or the newest before
    the batch, from which lag does not lead away; V-trace's weights then correct for who acted."""
    value_clip: NotNegative = 0.0
    """How far a value may move within a batch, in deviations of the targets; 0: anywhere."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""
    normalize_values: bool = False
    """With several passes: the network predicts values in units of the targets seen so far."""
    target_kl: NotNegative = 0.01
    """With several passes: the learning rate follows the policy's change per epoch towards this KL;
    0: it does not."""
    most_learning_rate_scale: Annotated[float, Bounds(1.0, 1000.0)] = 10.0
    """How far it may rise above `learning_rate`; 1: it only falls."""
    stop_kl: NotNegative = 0.0
    """No further epoch of a batch once the policy has changed by this KL; 0: all epochs."""
    max_policy_lag: Count = 1000
    """Rows that are this many updates old or older are masked out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_values and not self.has_passes:
            raise ConfigurationError(
                "normalize_values needs several passes over a batch; raise epochs or minibatches"
            )

    @property
    def has_passes(self) -> bool:
        """Whether a batch is learned from in more than one step."""
        return self.epochs * self.minibatches > 1


@dataclass(frozen=True)
class ClippedOptions(TargetOptions):
    """PPO's loss on V-trace's targets. The value error carries 1/2: 0.5 elsewhere is 1 here."""

    value_coefficient: NotNegative = 1.0
    """Weight of half the squared value error."""
    ppo: PPOOptions = PPOOptions()


@dataclass(frozen=True)
class SynchronousOptions(ActorCriticOptions):
    """A2C's loss, or PPO's where a batch is learned from several times."""

    ppo: PPOOptions = PPOOptions()


def young_share(valid: Tensor, ignored: Tensor) -> Tensor:
    """The share of rows that are valid among those that happened."""
    return valid.sum() / (~ignored).sum().clamp(min=1)


@dataclass(eq=False)
class Clipped(OverTrajectories):
    """What knows how old the rows of a batch [T+1, B] are and leaves out those that are too old."""

    options: ClippedOptions | SynchronousOptions

    def open(self, network: Network) -> None:
        assert isinstance(network, PolicyValueNetwork)
        super().open(network)
        self._network: PolicyValueNetwork = network
        self._version = 0

    def _young_rows(self, batch: Tensors) -> Tensor:
        """Rows below the lag bound [T, B]; a trajectory's version counts for all its columns."""
        lag = self._version - batch["parameter_version"][:-1]
        columns = batch["ignored"].shape[1] // lag.shape[1]
        young = lag < self.options.ppo.max_policy_lag
        return young[:, :, None].expand(-1, -1, columns).flatten(1)

    def after_update(self, version: int) -> None:
        self._version = version


@dataclass(eq=False)
class PPO(Clipped):
    """Targets and advantages are computed once per batch [T+1, B], with the weights it is met with;
    then `passes` hands out minibatches and the loss is taken on each of them.

    The ratio is taken to the policy that acted, or to the newest one before the batch (decoupled:
    Hilton et al., 2022; at the first step the gradient is then V-trace's). The KL is always taken
    to the newest, since only that is the doing of these steps."""

    without_lag: bool = False
    """Whether all rows acted with the weights that they are met with, and kept their values."""

    def open(self, network: Network) -> None:
        super().open(network)
        self._recalls = self.without_lag and network.core is None
        self._states = [f"state.{name}" for name in network.state_fields()]
        # Rows that do not count are left out, or masked: what is recorded for a GPU has one shape,
        # and memory needs every row.
        on_cpu = next(network.parameters()).is_cpu
        self._masks = network.core is not None or not on_cpu
        self._scale = 1.0
        self._divergences: list[Tensor] = []

    def constants(self) -> Hashable | None:
        return self.options  # ends of episodes are looked for once, before the passes

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
        # The order follows from the batch's number, so that a resumed run repeats it.
        generator = torch.Generator().manual_seed(self._version)
        for _ in range(ppo.epochs):
            self._divergences.clear()
            yield from parts.shuffled(generator)
            if not self._goes_on():
                return

    @torch.no_grad()
    def _prepared(self, batch: Tensors) -> Tensors:
        """All that the loss needs, [T, B, ...]."""
        options, network = self.options, self._network
        seen = self._reader.recall(batch) if self._recalls else self._reader.evaluate(batch)
        targets = ppo_targets(seen.log_rhos, seen.rows, options.traces)
        valid = ~seen.ignored & self._young_rows(batch)
        advantages = targets.advantages
        if options.ppo.normalize_advantages:
            advantages = normalize_advantages(advantages, valid)
        centre = seen.behaviour
        if options.ppo.trust_region == "newest":
            centre = seen.log_probs
            advantages = advantages * seen.log_rhos.exp().clamp(max=options.rho_bar)
        network.update_value_statistics(targets.vs, valid)
        inputs = {name: batch[name][:-1] for name in (*network.input_names, "first")}
        scale = network.value_scale()  # in whose units the value's error is taken
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
        batch = chosen(batch, network.core is not None)
        valid = batch.get("valid")
        outputs = self._outputs(batch)
        log_probs, entropies = self._policy(outputs.logits, batch["action"])
        loss = ppo_loss(
            log_probs,
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
        metrics = {
            "policy": loss.policy,
            "value": loss.value,
            "entropy": loss.entropy,
            "clipped_fraction": loss.clipped_fraction,
            "kl": divergence,
            "too_old_fraction": 1.0 - share,
        }
        return Loss(loss.total, metrics, learning_rate_scale=share)

    def _policy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities and entropies. Where nothing is asked of the latter, those of the
        actions that were taken tell enough of them: a squashed normal's cost more than the loss."""
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

    def _goes_on(self) -> bool:
        """After an epoch: set the next learning rate; False when the policy has changed enough."""
        ppo = self.options.ppo
        # Reading the divergence waits for the device.
        if not (ppo.target_kl or ppo.stop_kl):
            return True
        divergence = float(torch.stack(self._divergences).mean())
        if ppo.target_kl:
            most = ppo.most_learning_rate_scale
            self._scale = scale_by_divergence(self._scale, divergence, ppo.target_kl, most=most)
        return not ppo.stop_kl or divergence <= ppo.stop_kl

    def state(self) -> Arrays:
        return {"learning_rate_scale": np.array(self._scale), "version": np.array(self._version)}

    def load_state(self, state: Arrays) -> None:
        self._scale, self._version = float(state["learning_rate_scale"]), int(state["version"])
