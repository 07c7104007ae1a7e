# SPDX-License-Identifier: Apache-2.0
"""One of several policies that act side by side in the same groups of environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network
from veldt.population.orders import POLICY
from veldt.ports import ParameterSource
from veldt.roles.inference.batched_policy import ENVIRONMENT, Row, state_views
from veldt.roles.inference.forward_pass import forward_pass, host_room
from veldt.roles.policies.local import SampleActions, Selection
from veldt.types import PolicyReply


class ColumnPolicy:
    """Acts like BatchedPolicy, but only in the columns that are its own, and writes nowhere else:
    the policies of a row answer it at the same time. The recurrent state is that of the environment
    and lies in memory shared by all policies; it begins anew with each episode."""

    def __init__(
        self,
        context: NodeContext,
        parameters: ParameterSource,
        make_network: Callable[[], Network],
        group_width: int,
        most_groups: int,
        state: np.ndarray,
        make_selection: Callable[..., Selection] = SampleActions,
        device: str = "cpu",
        memory: object = None,
        *,
        policy: int,
    ) -> None:
        assert memory is None  # one model for all is GA3C's, which has one policy
        self._device, self._policy = torch.device(device), policy
        self._parameters, self._width = parameters, group_width
        self._network = make_network().to(self._device).eval()
        self._flat = FlatParameters(self._network, device)
        self._incoming = np.empty(self._flat.size, np.float32)
        self._forward = forward_pass(self._network, self._device)
        self.version = -1
        self._select = make_selection(self._network, context)
        self._names = (*self._network.input_names, "first")
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        self._states = state_views(self._network, state, group_width)
        self._room = most_groups * group_width
        self._batch: dict[str, torch.Tensor] = {}

    def refresh(self) -> None:
        newer = self._parameters.pull(self._incoming, newer_than=self.version)
        if newer is not None:
            self._flat.load(self._incoming)
            self.version = newer

    def act(self, rows: Sequence[Row], groups: Sequence[int]) -> PolicyReply:
        """One forward pass over the columns of `rows`, which belong to `groups`, that are this
        policy's; fills in what it knows of each, and in rows 0 the recurrent state before it."""
        columns = [np.flatnonzero(slot[POLICY][row] == self._policy) for slot, row in rows]
        ends = np.cumsum([len(own) for own in columns])
        places = [slice(end - len(own), end) for end, own in zip(ends, columns, strict=True)]
        group_of = np.repeat(groups, [len(own) for own in columns])
        column_of = np.concatenate(columns)
        tensors = self._gather(rows, columns, places)
        with torch.inference_mode():
            state = self._read_states(rows, groups, columns, group_of, column_of)
            outputs, state = self._forward(tensors, state)
            tensors[ENVIRONMENT] = torch.from_numpy(group_of * self._width + column_of)
            reply = self._select(outputs, tensors)
        for memory, tensor in zip(self._states, state, strict=True):
            memory[group_of, column_of] = tensor.numpy().reshape(len(group_of), -1)
        for (slot, row), own, place in zip(rows, columns, places, strict=True):
            slot["action"][row, own] = reply.action[place]
            for name, value in reply.outputs.items():
                slot[name][row, own] = value[place]
            slot["parameter_version"][row, own] = self.version
        reply.version = self.version
        return reply

    def _gather(
        self, rows: Sequence[Row], columns: list[np.ndarray], places: list[slice]
    ) -> dict[str, torch.Tensor]:
        """Observations side by side, in buffers allocated once."""
        if not self._batch:
            slot, _ = rows[0]
            for name in self._names:
                shape = (self._room, *slot[name].shape[2:])
                dtype = torch.from_numpy(slot[name][:0]).dtype
                self._batch[name] = host_room(shape, dtype, self._device)
        for name, room in self._batch.items():
            joined = room.numpy()
            for (slot, row), own, place in zip(rows, columns, places, strict=True):
                joined[place] = slot[name][row, own]
        used = places[-1].stop
        return {name: room[:used] for name, room in self._batch.items()}

    def _read_states(
        self,
        rows: Sequence[Row],
        groups: Sequence[int],
        columns: list[np.ndarray],
        group_of: np.ndarray,
        column_of: np.ndarray,
    ) -> tuple[torch.Tensor, ...]:
        states = []
        for name, memory in zip(self._state_names, self._states, strict=True):
            for (slot, row), group, own in zip(rows, groups, columns, strict=True):
                if row == 0:
                    slot[name][own] = memory[group, own]
            states.append(torch.from_numpy(memory[group_of, column_of]))
        return tuple(states)
