# SPDX-License-Identifier: Apache-2.0
"""LocalPolicy: an actor acts with its own copy of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, acting_step
from veldt.ports import ParameterSource, Policy
from veldt.roles.policies.selection import SampleActions, Selection
from veldt.topology import lagging
from veldt.types import PolicyReply, Slot

State = tuple[torch.Tensor, ...]


@dataclass(eq=False)
class LocalPolicy(Policy):
    """Answers at once, with the weights of the last refresh."""

    network: NetworkFactory
    weights: ParameterSource
    selection: Selection = field(default_factory=SampleActions)
    refresh_rows: int = 0
    """Rows between two refreshes; 0: only at the start of each trajectory."""

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        self._network = self.network.blank().eval()  # weights come from the board
        self._vector = FlatParameters(self._network).numpy()
        self._step = acting_step(self._network)
        self.selection.open(self._network, context)
        self._version, self._rows_since_refresh = -1, 0
        self._states: list[State] = [self._network.initial_state(width) for width in widths]
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        self._replies: list[PolicyReply | None] = [None for _ in widths]

    def refresh(self, minimum_version: int = 0) -> bool:
        due = self._rows_since_refresh >= self.refresh_rows
        if due or self._version < minimum_version:
            self._pull()
        return self._version >= minimum_version

    def _pull(self) -> None:
        newer = self.weights.pull(self._vector, newer_than=self._version)
        if newer is not None:
            self._version = newer
        self._rows_since_refresh = 0

    def request(self, group: int, slot: Slot, row: int) -> None:
        if self.refresh_rows and self._rows_since_refresh >= self.refresh_rows:
            self._pull()
        self._rows_since_refresh += 1
        arrays, state, network = slot.arrays, self._states[group], self._network
        if row == 0:
            for name, tensor in zip(self._state_names, state, strict=True):
                arrays[name][:] = tensor.numpy()
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(arrays[name][row]) for name in network.input_names}
            first = torch.from_numpy(arrays["first"][row])
            outputs, self._states[group] = self._step(tensors, state, first)
            reply = self.selection(outputs, tensors)
        reply.version = self._version
        self._replies[group] = reply

    def reply(self, group: int) -> PolicyReply | None:
        return self._replies[group]

    def lagging(self, updates: int) -> Policy | None:
        weights = lagging(self.weights, updates)
        return None if weights is None else replace(self, weights=weights)
