# SPDX-License-Identifier: Apache-2.0
"""Q-learning from replayed transitions with a target network: DQN, Gorila and Ape-X."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch

from veldt.algorithms.q_learning import q_loss, td_errors
from veldt.networks import Network
from veldt.objectives import Loss, Tensors
from veldt.objectives.target_network import TargetNetwork, WithTarget
from veldt.options.checked import Count, Fraction, Options
from veldt.types import ACTION_MASK


@dataclass(frozen=True)
class QLearningOptions(Options):
    """What the target is and how errors are weighed."""

    gamma: Fraction = 0.99
    """Discount per environment step."""
    n_step: Count = 1
    """Rewards summed before the target bootstraps."""
    double: bool = True
    """Let the online network choose the action that the target network values."""
    td_loss: Literal["huber", "clipped", "squared"] = "huber"
    """huber, clipped (gradient of the TD error clipped to [-1, 1]) or squared."""
    target_period_updates: Count = 100
    """Updates between two copies of the network into the target network."""
    normalize_observations: bool = False
    """Scale vectors by statistics shared by all actors."""
    normalize_images: bool = False
    """Scale each pixel by statistics shared by all actors."""


@dataclass(eq=False)
class QLearning(WithTarget):
    """Loss over a batch of transitions [B]; owns the target network."""

    options: QLearningOptions

    def open(self, network: Network) -> None:
        super().open(network)
        self._target = TargetNetwork(network, self.options.target_period_updates)
        self._leaves = [leaf.name for leaf in network.spec.observation]
        if network.spec.action_mask_size:
            self._leaves.append(ACTION_MASK)

    def constants(self) -> Hashable | None:
        return self.options

    def __call__(self, batch: Tensors) -> Loss:
        reward = batch["reward"]
        first = torch.zeros_like(reward, dtype=torch.bool)
        now = {name: batch[name] for name in self._leaves}
        later = {name: batch["next_" + name] for name in self._leaves}
        q = self._network.step(now, (), first)[0].q_values
        with torch.no_grad():
            target = self._target.network.step(later, (), first)[0].q_values
            online = target
            if self.options.double:
                online = self._network.step(later, (), first)[0].q_values
        td = td_errors(
            q,
            batch["action"],
            reward * self._network.reward_scale(),
            batch["discount"],
            online,
            target,
            self.options.double,
            later.get(ACTION_MASK),
        )
        loss = q_loss(td, self.options.td_loss, batch["weight"])
        errors = loss.td.detach().abs()
        metrics = {"td": errors.mean(), "value": q.detach().mean(), "q": loss.loss}
        return Loss(loss.loss, metrics, priorities=errors)
