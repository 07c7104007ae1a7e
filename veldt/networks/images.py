# SPDX-License-Identifier: Apache-2.0
"""Images on their way into convolutions: type, scale and memory order, by device and batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veldt.families import SMALLEST_LARGE_SIDE
from veldt.resources import multiplies_bfloat16

LARGE_CUDA_BATCH = 128  # below it, casting costs more than faster convolutions save
LARGE_CPU_BATCH = 8  # with 2 a learner gains nothing
CHANNELS_TOGETHER = 8  # with fewer at a time, tensor cores cannot be used


def convolved(convolve: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """What is computed of an image, in bfloat16 where that is: up to twice as fast."""
    if image.dtype != torch.bfloat16:
        return convolve(image)
    # Every weight is used once, so there is nothing to keep, and threads share what is kept.
    with torch.autocast(image.device.type, torch.bfloat16, cache_enabled=False):
        return convolve(image).float()


def is_better_rounded(value: Tensor) -> bool:
    """Whether these images are convolved sooner in bfloat16."""
    if value.is_cuda:
        return value.shape[0] >= LARGE_CUDA_BATCH
    is_large = min(value.shape[2:]) >= SMALLEST_LARGE_SIDE and value.shape[0] >= LARGE_CPU_BATCH
    return is_large and value.is_cpu and multiplies_bfloat16()


def as_image(value: Tensor, channels_last: bool, may_round: bool = True) -> Tensor:
    """Float images, 1/255 for bytes, in the faster memory order; bfloat16 where that is faster."""
    dtype = torch.bfloat16 if may_round and is_better_rounded(value) else torch.float32
    if value.is_cuda and dtype == torch.bfloat16:
        image = filled_up(value, dtype)
    elif value.is_cpu and channels_last:
        image = value.to(dtype, memory_format=torch.channels_last)
    else:
        image = value.to(dtype)
    return image.mul_(1.0 / 255.0) if value.dtype == torch.uint8 else image


def filled_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The image, channels last, with zeros for the channels up to a multiple of CHANNELS_TOGETHER.
    Over 4 channels a first convolution of 4,224 images took 23 ms on an H200, over 8 it took 3."""
    count, channels, height, width = value.shape
    rounded = -(-channels // CHANNELS_TOGETHER) * CHANNELS_TOGETHER
    if rounded == channels:
        return value.to(dtype, memory_format=torch.channels_last)
    shape = (count, height, width, rounded)
    image = torch.zeros(shape, dtype=dtype, device=value.device).permute(0, 3, 1, 2)
    image[:, :channels] = value
    return image
