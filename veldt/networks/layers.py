# SPDX-License-Identifier: Apache-2.0
"""Layers and recurrent cores; one explicit generator draws their weights.

So a seed determines every bit. Without a generator weights stay arbitrary, to be overwritten.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQRT2 = math.sqrt(2.0)
State = tuple[Tensor, ...]


def orthogonal_(
    weight: Tensor, gain: float = 1.0, generator: torch.Generator | None = None
) -> None:
    """Orthogonal weights; nothing happens without a generator."""
    if generator is None:
        return
    # The last bits of a factorisation depend on the number of threads.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        nn.init.orthogonal_(weight, gain, generator=generator)
    finally:
        torch.set_num_threads(before)


def linear(
    num_inputs: int, num_outputs: int, gain: float, generator: torch.Generator | None
) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def fused_linear(
    num_inputs: int, parts: tuple[tuple[int, float], ...], generator: torch.Generator | None
) -> nn.Linear:
    """One layer for several heads; `parts` are (outputs, gain), each orthogonal by itself."""
    layer = linear(num_inputs, sum(size for size, _ in parts), 1.0, generator)
    start = 0
    for size, gain in parts:
        orthogonal_(layer.weight[start : start + size], gain, generator=generator)
        start += size
    return layer


class Convolution(nn.Conv2d):
    """Adds channels of zeros to bfloat16 images on CUDA, whose tensor cores need a multiple of 8.

    On an H200 a first convolution of 4,224 images took 23 ms with 4 channels and 3 ms with 8.
    """

    def forward(self, image: Tensor) -> Tensor:
        weight, missing = self.weight, -image.shape[1] % 8
        if missing and image.is_cuda and image.dtype == torch.bfloat16:
            zeros = (0, 0, 0, 0, 0, missing)
            image, weight = F.pad(image, zeros), F.pad(weight, zeros)
        return F.conv2d(image, weight, self.bias, self.stride, self.padding)


def convolution(
    channels_in: int,
    channels_out: int,
    kernel: int,
    stride: int,
    padding: int,
    generator: torch.Generator | None,
    gain: float = SQRT2,
) -> Convolution:
    layer = Convolution(channels_in, channels_out, kernel, stride, padding)
    orthogonal_(layer.weight, gain, generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def num_outputs(layers: nn.Module, shape: tuple[int, ...]) -> int:
    """Features that a sequence of convolutions and poolings makes of an image [C, H, W].

    Computed here because a pass on torch's meta device imports sympy, which is slow.
    """
    channels, *sides = shape
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = map(_one, (layer.kernel_size, layer.stride, layer.padding))
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
    return channels * math.prod(sides)


def _one(sides: Any) -> int:
    """One number for both directions, which are equal in all layers here."""
    return sides[0] if isinstance(sides, tuple) else sides


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        array = x.detach().numpy()
        np.tanh(array, out=array)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradients[0], y)


def tanh_(x: Tensor) -> Tensor:
    """tanh in place, on the CPU by NumPy.

    NumPy's is 4 to 9 times faster than torch's there. With torch's, an update of a 64x64 network
    takes 12% longer."""
    if not x.is_cpu or torch.compiler.is_compiling():  # an exported program cannot call NumPy
        return torch.tanh_(x)
    if x.requires_grad:
        return _Tanh.apply(x)
    array = x.numpy()
    np.tanh(array, out=array)
    return x


# In place, because the derivatives of all of them follow from the output.
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh_,
    "relu": torch.relu_,
    "elu": F.elu_,
}


class MLP(nn.Module):
    """Linear layers, each followed by the activation; no layers: the identity."""

    def __init__(
        self,
        num_inputs: int,
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        widths = (num_inputs, *sizes)
        self.layers = nn.ModuleList(
            linear(widths[i], widths[i + 1], SQRT2, generator) for i in range(len(sizes))
        )
        self.norms = nn.ModuleList()
        """Of each layer's outputs; none: they are not normalized."""
        self.num_features = widths[-1]
        self.activation = IN_PLACE[activation]

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.norms:
                x = self.norms[index](x)
            x = self.activation(x)
        return x


class Core(nn.Module, ABC):
    """A recurrent core whose state is reset inside a trajectory, wherever an episode begins.

    The state after every row is needed, because the value of a final observation continues from it;
    torch's fused LSTM does not return it. Weights are `gates` blocks of `size` rows.
    """

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


CORES: dict[str, type[Core]] = {"lstm": LSTMCore, "gru": GRUCore}
