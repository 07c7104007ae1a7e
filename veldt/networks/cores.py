# SPDX-License-Identifier: Apache-2.0
"""Recurrent cores whose state is reset inside a trajectory, wherever an episode begins.

Written out cell by cell because the state after every row is needed (the value of a final
observation continues from it), which torch's fused LSTM does not return.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veldt.networks.layers import orthogonal_

State = tuple[Tensor, ...]


class Core(nn.Module, ABC):
    """`gates` blocks of `size` rows; the input part of all rows is one matrix product."""

    state_names: tuple[str, ...]
    gates: int

    def __init__(self, num_inputs: int, size: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.size = size
        self.input_weight = nn.Parameter(torch.empty(self.gates * size, num_inputs))
        self.state_weight = nn.Parameter(torch.empty(self.gates * size, size))
        self.bias = nn.Parameter(torch.zeros(self.gates * size))
        for gate in range(self.gates):
            rows = slice(gate * size, (gate + 1) * size)
            for weight in (self.input_weight, self.state_weight):
                orthogonal_(weight.data[rows], generator=generator)

    def initial_state(self, batch: int) -> State:
        return tuple(self.bias.new_zeros(batch, self.size) for _ in self.state_names)

    def step(self, inputs: Tensor, state: State, first: Tensor) -> State:
        """One row [B, F] -> new state; its first entry is the output."""
        return self._advance(F.linear(inputs, self.input_weight, self.bias), state, first)

    def unroll(self, inputs: Tensor, state: State, first: Tensor) -> State:
        """Rows [T, B, F] -> the state after each row, tensors [T, B, size]."""
        projected = F.linear(inputs, self.input_weight, self.bias)
        states = []
        for row, row_first in zip(projected.unbind(0), first.unbind(0), strict=True):
            state = self._advance(row, state, row_first)
            states.append(state)
        return tuple(torch.stack(entries) for entries in zip(*states, strict=True))

    def _advance(self, projected: Tensor, state: State, first: Tensor) -> State:
        keep = (~first).to(projected.dtype).unsqueeze(1)
        return self._cell(projected, tuple(entry * keep for entry in state))

    @abstractmethod
    def _cell(self, projected: Tensor, state: State) -> State: ...


class LSTMCore(Core):
    """c' = f c + i g; h' = o tanh(c'). Rows: input, forget, output gates, then candidate."""

    state_names = ("hidden", "cell")
    gates = 4

    def __init__(self, num_inputs: int, size: int, generator: torch.Generator | None) -> None:
        super().__init__(num_inputs, size, generator)
        self.bias.data[size : 2 * size] = 1.0  # the forget gate starts open, as in IMPALA

    def _cell(self, projected: Tensor, state: State) -> State:
        hidden, cell = state
        rows = torch.addmm(projected, hidden, self.state_weight.t())
        gates = torch.sigmoid(rows[:, : 3 * self.size])
        candidate = torch.tanh(rows[:, 3 * self.size :])
        admit, forget, emit = gates.chunk(3, dim=1)
        cell = torch.addcmul(forget * cell, admit, candidate)
        return emit * torch.tanh(cell), cell


class GRUCore(Core):
    """h' = n + z (h - n), n = tanh(x_n + r (W h + b)). Rows: reset, update gates, then
    candidate."""

    state_names = ("hidden",)
    gates = 3

    def __init__(self, num_inputs: int, size: int, generator: torch.Generator | None) -> None:
        super().__init__(num_inputs, size, generator)
        self.state_bias = nn.Parameter(torch.zeros(size))

    def _cell(self, projected: Tensor, state: State) -> State:
        (hidden,) = state
        recurrent = F.linear(hidden, self.state_weight)
        split = 2 * self.size
        gates = torch.sigmoid(projected[:, :split] + recurrent[:, :split])
        reset, update = gates.chunk(2, dim=1)
        candidate = torch.tanh(
            torch.addcmul(projected[:, split:], reset, recurrent[:, split:] + self.state_bias)
        )
        return (torch.lerp(candidate, hidden, update),)


def make_core(kind: str, num_inputs: int, size: int, generator: torch.Generator | None) -> Core:
    families: dict[str, type[Core]] = {"lstm": LSTMCore, "gru": GRUCore}
    return families[kind](num_inputs, size, generator)
