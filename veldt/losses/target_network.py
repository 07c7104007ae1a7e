# SPDX-License-Identifier: Apache-2.0
"""Target networks, copied at intervals or followed slowly, and noise in a loss."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from veldt.losses import Objective
from veldt.networks import Network
from veldt.role import Arrays

AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class TargetNetwork(Generic[AnyNetwork]):
    """Overwritten by `online` once per `period_updates` versions."""

    def __init__(self, online: AnyNetwork, period_updates: int) -> None:
        self.network: AnyNetwork = copy.deepcopy(online).requires_grad_(False)
        self._period, self._copies = period_updates, 0
        self._from = [*online.parameters(), *online.buffers()]
        self._to = [*self.network.parameters(), *self.network.buffers()]

    @torch.no_grad()
    def after_update(self, version: int) -> None:
        """Versions may jump where others step the weights: a copy is due for each full period."""
        due = version // self._period
        if due > self._copies:
            self._copies = due
            torch._foreach_copy_(self._to, self._from)

    def state(self) -> dict[str, np.ndarray]:
        arrays = {f"target.{i}": entry.cpu().numpy() for i, entry in enumerate(self._to)}
        return {**arrays, "target_copies": np.array(self._copies)}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for i, entry in enumerate(self._to):
            entry.copy_(torch.from_numpy(state[f"target.{i}"]))
        self._copies = int(state["target_copies"])


class SoftTarget(Generic[AnyNetwork]):
    """Follows `online` by a share `tau` at each full period; statistics are copied as they are."""

    def __init__(self, online: AnyNetwork, tau: float, period_updates: int = 1) -> None:
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"soft_update is {tau}; use more than 0 and at most 1")
        self.network: AnyNetwork = copy.deepcopy(online).requires_grad_(False)
        self._tau, self._period = tau, period_updates
        self._online: list[Tensor] = list(online.parameters())
        self._own: list[Tensor] = list(self.network.parameters())
        self._statistics = list(online.buffers()), list(self.network.buffers())

    @torch.no_grad()
    def after_update(self, version: int) -> None:
        if version % self._period:
            return
        torch._foreach_lerp_(self._own, self._online, self._tau)
        online, own = self._statistics
        if own:
            torch._foreach_copy_(own, online)

    def state(self) -> dict[str, np.ndarray]:
        entries = [*self._own, *self._statistics[1]]
        return {f"target.{i}": entry.cpu().numpy() for i, entry in enumerate(entries)}

    @torch.no_grad()
    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for i, entry in enumerate([*self._own, *self._statistics[1]]):
            entry.copy_(torch.from_numpy(state[f"target.{i}"]))


class WithTarget(Objective):
    """An objective that owns a target network of `_target`."""

    _target: TargetNetwork[Any] | SoftTarget[Any]

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
