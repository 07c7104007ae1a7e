# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights come from one explicit generator, so that a seed alone decides every bit.

Without a generator they stay blank: weights from elsewhere are to be put there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQRT2 = math.sqrt(2.0)
_SLOW_TO_FACTORISE = 2048**3  # multiplications: above half a second
_SLOW_TO_DRAW = 1 << 22  # entries


def orthogonal_(
    weight: Tensor, gain: float = 1.0, generator: torch.Generator | None = None
) -> None:
    """Nothing happens without a generator. Thousands of units would take minutes to make
    orthogonal; the rows of so large a matrix are nearly so when each entry is drawn by itself."""
    if generator is None:
        return
    rows, columns = weight.shape[0], weight[0].numel()
    if rows * columns * min(rows, columns) > _SLOW_TO_FACTORISE:
        nn.init.normal_(weight, std=gain / math.sqrt(max(rows, columns)), generator=generator)
    else:
        with _one_thread():
            nn.init.orthogonal_(weight, gain, generator=generator)


@contextmanager
def _one_thread() -> Iterator[None]:
    """What several threads factorise differs in its last bits with their number, and so would the
    same seed on a machine with more cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def linear(
    num_inputs: int, num_outputs: int, gain: float, generator: torch.Generator | None
) -> nn.Linear:
    layer = _undrawn(num_inputs, num_outputs)
    orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _undrawn(num_inputs: int, num_outputs: int) -> nn.Linear:
    """A large layer is not drawn once by torch and then again: that takes seconds."""
    if num_inputs * num_outputs <= _SLOW_TO_DRAW:
        return nn.Linear(num_inputs, num_outputs)
    layer = nn.Linear(num_inputs, num_outputs, device="meta")
    return layer.to_empty(device=torch.get_default_device())


def fused_linear(
    num_inputs: int, parts: tuple[tuple[int, float], ...], generator: torch.Generator | None
) -> nn.Linear:
    """One matrix product for several heads; `parts` are (outputs, gain), each orthogonal by
    itself."""
    layer = linear(num_inputs, sum(size for size, _ in parts), 1.0, generator)
    start = 0
    for size, gain in parts:
        orthogonal_(layer.weight[start : start + size], gain, generator=generator)
        start += size
    return layer


class Convolution(nn.Conv2d):
    """Also takes images that were filled up with channels of zeros (see images.as_image)."""

    def forward(self, image: Tensor) -> Tensor:
        added = image.shape[1] - self.in_channels
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, added)) if added > 0 else self.weight
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
    """Features that convolutions and poolings, one after the other, make of an image [C, H, W].
    Asking torch, without memory for the weights, would import a computer algebra system."""
    channels, *sides = shape
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = map(_one, (layer.kernel_size, layer.stride, layer.padding))
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
    return channels * math.prod(sides)


def _one(sides: Any) -> int:
    """Of both directions, which are alike in all layers here."""
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
    """tanh in place. On the CPU NumPy computes it: 7 times faster than torch there, where tanh
    would take longer than the matrix products of a 64x64 MLP."""
    if not x.is_cpu or torch.compiler.is_compiling():  # a program for elsewhere has no NumPy
        return torch.tanh_(x)
    if x.requires_grad:
        return _Tanh.apply(x)
    array = x.numpy()
    np.tanh(array, out=array)
    return x


_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh_,
    "relu": torch.relu_,
    "elu": F.elu_,
}


# For vectors, whose networks have one of these.
_IN_NUMPY: dict[Any, Any] = {tanh_: np.tanh, torch.relu_: partial(np.maximum, 0.0)}


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
        self.num_features = widths[-1]
        # In place: all derivatives follow from the output, and a linear layer does not need it.
        self.activation = _IN_PLACE[activation]
        # nn.Module looks attributes up slowly; at 64 rows that would cost as much as a layer.
        self._weights = [tuple(layer.parameters()) for layer in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        activation, weights = self.activation, self._weights
        if torch.compiler.is_compiling():  # which only knows what nn.Module knows
            weights = [(layer.weight, layer.bias) for layer in self.layers]  # type: ignore[misc]
        for weight, bias in weights:
            x = activation(F.linear(x, weight, bias))
        return x

    def in_numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same without gradients, for a few rows; reads the weights where they lie."""
        steps = [in_numpy(layer) for layer in self.layers]
        activate = _IN_NUMPY[self.activation]

        def run(rows: np.ndarray) -> np.ndarray:
            for step in steps:
                rows = step(rows)
                activate(rows, out=rows)
            return rows

        return run


def in_numpy(layer: nn.Module, rows: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """A linear layer, or the first `rows` of its outputs, over the same weights."""
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight.detach().numpy()[:rows].T, layer.bias.detach().numpy()[:rows]

    def run(x: np.ndarray) -> np.ndarray:
        y = x @ weight
        y += bias
        return y

    return run
