# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights come from one explicit generator, so that a seed determines every bit.

Without a generator weights stay arbitrary, for callers that overwrite them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQRT2 = math.sqrt(2.0)


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
    """Also takes images that were filled up with channels of zeros (`encoders.filled_up`)."""

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
    """tanh in place; on the CPU by NumPy, which is 7 times faster than torch.

    With torch's, tanh would take longer than the matrix products of a 64x64 MLP.
    """
    if not x.is_cpu or torch.compiler.is_compiling():  # an exported program has no NumPy
        return torch.tanh_(x)
    if x.requires_grad:
        return _Tanh.apply(x)
    array = x.numpy()
    np.tanh(array, out=array)
    return x


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
        self.num_features = widths[-1]
        # In place, because the derivatives of all of them follow from the output.
        self.activation = IN_PLACE[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x
