# SPDX-License-Identifier: Apache-2.0
"""Asynchronous PPO: clipped surrogate on V-trace targets, data that is too old masked out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from veldt.algorithms.ppo import ppo_loss
from veldt.algorithms.vtrace import vtrace
from veldt.objectives import Loss, Objective, Tensors
from veldt.objectives.ppo import PPO, Clipped, ClippedOptions, young_share


@dataclass(eq=False)
class Appo(Clipped):
    """Loss over a batch of trajectories [T+1, B]. The learning rate is scaled by the share of rows
    that are young enough, so that a thinned batch does not take a full step."""

    def passes(self, batch: Tensors) -> Iterable[Tensors]:
        return ({**batch, "young": self._young_rows(batch)},)

    def __call__(self, batch: Tensors) -> Loss:
        options, network = self.options, self._network
        seen = self._reader.evaluate(batch)
        targets = vtrace(seen.log_rhos, seen.rows, options.traces, weighted=False)
        valid = ~seen.ignored & batch["young"]
        loss = ppo_loss(
            seen.log_probs,
            seen.behaviour,
            targets.advantages,
            seen.values,
            batch["behaviour_value"][:-1],
            targets.vs,
            network.distribution.entropy(seen.logits),
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
        share = young_share(valid, seen.ignored)
        metrics["too_old_fraction"] = 1.0 - share
        return Loss(loss.total, metrics, learning_rate_scale=share)


def clipped(options: ClippedOptions) -> Objective:
    """Sample Factory's loss: one step per batch, or PPO's passes over it."""
    return PPO(options) if options.ppo.has_passes else Appo(options)
