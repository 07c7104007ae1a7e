# SPDX-License-Identifier: Apache-2.0
"""One of several policies that act side by side in the same groups of environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from veldt.population.orders import POLICY
from veldt.roles.inference.batched_policy import BatchedPolicy, Row
from veldt.roles.policies.selection import ENVIRONMENT
from veldt.types import PolicyReply


@dataclass(eq=False, kw_only=True)
class ColumnPolicy(BatchedPolicy):
    """Acts only in the columns that are its own, and writes nowhere else: the policies of a row
    answer it at the same time. The recurrent state is that of the environment and lies in memory
    shared by all policies; it begins anew with each episode."""

    policy: int

    def act(self, rows: Sequence[Row], groups: Sequence[int]) -> PolicyReply:
        """One forward pass over the columns of `rows`, which belong to `groups`, that are this
        policy's; fills in what it knows of each, and in rows 0 the recurrent state before it."""
        columns = [np.flatnonzero(slot[POLICY][row] == self.policy) for slot, row in rows]
        ends = np.cumsum([len(own) for own in columns])
        places = [slice(end - len(own), end) for end, own in zip(ends, columns, strict=True)]
        group_of = np.repeat(groups, [len(own) for own in columns])
        column_of = np.concatenate(columns)
        tensors = self._gather_columns(rows, columns, places)
        with torch.inference_mode():
            state = self._read_columns(rows, groups, columns, group_of, column_of)
            outputs, state = self._forward(tensors, state)
            tensors[ENVIRONMENT] = torch.from_numpy(group_of * self._width + column_of)
            reply = self.selection(outputs, tensors)
        for memory, tensor in zip(self._states, state, strict=True):
            memory[group_of, column_of] = tensor.numpy().reshape(len(group_of), -1)
        for (slot, row), own, place in zip(rows, columns, places, strict=True):
            slot["action"][row, own] = reply.action[place]
            for name, value in reply.outputs.items():
                slot[name][row, own] = value[place]
            slot["parameter_version"][row, own] = self.version
        reply.version = self.version
        return reply

    def _gather_columns(
        self, rows: Sequence[Row], columns: list[np.ndarray], places: list[slice]
    ) -> dict[str, torch.Tensor]:
        """Observations side by side, in buffers allocated once."""
        if not self._batch:
            slot, _ = rows[0]
            names = (*self._network.input_names, "first")
            self._batch = {name: self._room_for(slot[name]) for name in names}
        for name, room in self._batch.items():
            joined = room.numpy()
            for (slot, row), own, place in zip(rows, columns, places, strict=True):
                joined[place] = slot[name][row, own]
        used = places[-1].stop
        return {name: room[:used] for name, room in self._batch.items()}

    def _read_columns(
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
