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
from veldt.objectives.trajectories import TrajectoryReader


@dataclass(frozen=True)
class AppoSettings:
    """Sample Factory's loss. The value error carries 1/2, so its published 0.5 is 1.0 here."""

    gamma: float = 0.99
    """Discount per environment step."""
    ppo_clip: float = 0.1
    """The ratio pi/mu counts within [1/(1+e), 1+e]."""
    value_clip: float = 0.2
    """How far a value may move from what the critic thought while acting."""
    rho_bar: float = 1.0
    """V-trace's clip of the importance weight in the targets."""
    c_bar: float = 1.0
    """V-trace's clip of the importance weight in the trace."""
    trace_lambda: float = 1.0
    """Decay of the trace."""
    value_coefficient: float = 1.0
    """Weight of half the squared value error."""
    entropy_coefficient: float = 0.001
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""
    normalize_returns: bool = False
    """Scale rewards by the spread of the discounted return, as seen by all actors."""
    max_policy_lag: int = 1000
    """Rows that are this many updates old or older are masked out."""


class Appo(Objective):
    """Loss over a batch of trajectories [T+1, B]. The learning rate is scaled by the share of rows
    that are young enough, so that a thinned batch does not take a full step."""

    def __init__(self, network: Network, config: AppoSettings) -> None:
        self._network, self._config = network, config
        self._reader = TrajectoryReader(network)
        self._version = 0

    def __call__(self, batch: Tensors) -> Loss:
        config, network = self._config, self._network
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
                config.gamma,
                config.trace_lambda,
                config.rho_bar,
                config.c_bar,
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
            config.ppo_clip,
            config.value_clip,
            config.value_coefficient,
            config.entropy_coefficient,
            normalize=config.normalize_advantages,
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
        return (lag < self._config.max_policy_lag).repeat_interleave(columns, dim=1)

    def after_update(self, version: int) -> None:
        self._version = version

    def adjust(self, **settings: float) -> None:
        self._config = replace(self._config, **settings)  # type: ignore[arg-type]
