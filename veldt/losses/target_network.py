# SPDX-License-Identifier: Apache-2.0
"""Target networks, copied at intervals or followed slowly, and noise in a loss."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from veldt.losses import Objective, Tensors
from veldt.networks import Network
from veldt.role import Arrays
from veldt.types import ACTION_MASK

AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class TargetNetwork(Generic[AnyNetwork]):
    """Follows `online` by a share `tau` (1: a copy) once per `period_updates` versions.

    Statistics are copied as they are."""

    def __init__(self, online: AnyNetwork, period_updates: int = 1, tau: float = 1.0) -> None:
        self.network: AnyNetwork = copy.deepcopy(online).requires_grad_(False)
        self._period, self._tau, self._steps = period_updates, tau, 0
        self._weights: list[Tensor] = [*self.network.parameters()]
        self._online: list[Tensor] = [*online.parameters()]
        self._statistics = [*self.network.buffers()], [*online.buffers()]

    @torch.no_grad()
    def after_update(self, version: int) -> None:
        """Versions may jump where others step the weights: a step is due for each full period."""
        due = version // self._period
        if due <= self._steps:
            return
        self._steps = due
        torch._foreach_lerp_(self._weights, self._online, self._tau)
        own, online = self._statistics
        if own:
            torch._foreach_copy_(own, online)

    def _entries(self) -> dict[str, Tensor]:
        own = [*self._weights, *self._statistics[0]]
        return {f"target.{i}": entry for i, entry in enumerate(own)}

    def state(self) -> Arrays:
        arrays = {name: entry.cpu().numpy() for name, entry in self._entries().items()}
        return {**arrays, "target_copies": np.array(self._steps)}

    def load_state(self, state: Arrays) -> None:
        for name, entry in self._entries().items():
            entry.copy_(torch.from_numpy(state[name]))
        self._steps = int(state["target_copies"])


class WithTarget(Objective):
    """An objective over replayed data that owns a target network."""

    _target: TargetNetwork[Any]

    def open(self, network: Network) -> None:
        super().open(network)
        self._leaves = [leaf.name for leaf in network.spec.observation]
        if network.spec.action_mask_size:
            self._leaves.append(ACTION_MASK)

    def _ends(self, batch: Tensors) -> tuple[Tensors, Tensors]:
        """What was observed at both ends of transitions."""
        now = {name: batch[name] for name in self._leaves}
        return now, {name: batch["next_" + name] for name in self._leaves}

    def after_update(self, version: int) -> None:
        self._target.after_update(version)

    def state(self) -> Arrays:
        return self._target.state()

    def load_state(self, state: Arrays) -> None:
        self._target.load_state(state)


class WithNoisyTarget(WithTarget):
    """The same with noise in the loss."""

    def open(self, network: Network) -> None:
        super().open(network)
        device = next(network.parameters()).device
        self._random = torch.Generator(device).manual_seed(self.seed)

    def _normal(self, *shape: int) -> Tensor:
        """Standard normal numbers on the device of the network."""
        return torch.randn(shape, generator=self._random, device=self._random.device)
