# SPDX-License-Identifier: Apache-2.0
"""Asynchronous PPO: clipped surrogate on V-trace targets, data that is too old masked out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veldt.algorithms.ppo import ppo_loss
from veldt.algorithms.vtrace import vtrace
from veldt.networks import Network
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.ppo import PPO, ClippedOptions
from veldt.objectives.trajectories import TrajectoryReader


@dataclass(eq=False)
class Appo(Objective):
    """Loss over a batch of trajectories [T+1, B]. The learning rate is scaled by the share of rows
    that are young enough, so that a thinned batch does not take a full step."""

    options: ClippedOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._reader = TrajectoryReader(network)
        self._version = 0

    def __call__(self, batch: Tensors) -> Loss:
        options, network = self.options, self._network
        assert network.distribution is not None
        outputs, states = self._reader.unroll(batch)
        logits, values, action = outputs.logits[:-1], outputs.value[:-1], batch["action"][:-1]
        log_probs = network.distribution.log_prob(logits, action)
        ignored = batch["ignored"][:-1]
        with torch.no_grad():
            behaviour = network.distribution.log_prob(batch["behaviour_logits"][:-1], action)
            targets = vtrace(
                log_probs.detach() - behaviour,
                batch["reward"][:-1] * network.reward_scale(),
                values.detach(),
                self._reader.next_values(batch, outputs.value, states),
                batch["terminated"][:-1],
                batch["truncated"][:-1],
                ignored,
                options.gamma,
                options.trace_lambda,
                options.rho_bar,
                options.c_bar,
                weighted=False,
            )
            young = self._young_rows(batch, ignored)
        valid = ~ignored & young
        loss = ppo_loss(
            log_probs,
            behaviour,
            targets.advantages,
            values,
            batch["behaviour_value"][:-1],
            targets.vs,
            network.distribution.entropy(logits),
            valid,
            options.ppo.ppo_clip,
            options.ppo.value_clip,
            options.value_coefficient,
            options.entropy_coefficient,
            normalize=options.ppo.normalize_advantages,
        )
        metrics = {
            "policy": loss.policy,
            "value": loss.value,
            "entropy": loss.entropy,
            "clipped_fraction": loss.clipped_fraction,
            "kl": loss.divergence,
        }
        share = valid.sum() / (~ignored).sum().clamp(min=1)
        metrics["too_old_fraction"] = 1.0 - share
        return Loss(loss.total, metrics, learning_rate_scale=share)

    def _young_rows(self, batch: Tensors, like: Tensor) -> Tensor:
        """Rows below the lag bound [T, B]; a trajectory's version counts for all its columns."""
        lag = self._version - batch["parameter_version"][:-1]
        columns = like.shape[1] // lag.shape[1]
        return (lag < self.options.ppo.max_policy_lag).repeat_interleave(columns, dim=1)

    def after_update(self, version: int) -> None:
        self._version = version

    def adjust_entropy(self, coefficient: float) -> None:
        self.options = replace(self.options, entropy_coefficient=coefficient)


def clipped(options: ClippedOptions) -> Objective:
    """Sample Factory's loss: one step per batch, or PPO's passes over it."""
    return PPO(options) if options.ppo.has_passes else Appo(options)
