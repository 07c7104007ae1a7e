# SPDX-License-Identifier: Apache-2.0
"""All weights and statistics of a module as views into one flat float32 vector.

A shard is a slice, a broadcast one copy, a checkpoint one tensor, a finite check one norm.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class FlatParameters:
    """Owns the memory of `module`: trained parameters first, then all other floating tensors.

    `vector` holds everything; `gradient` the trained part, and backward accumulates into it
    because every `parameter.grad` is a view. Call `zero_gradient()`, never `zero_grad()`, which
    would replace the views.

    Args:
        module: Its parameters and buffers become views.
        device: Where the vector is allocated.
        memory: A float32 vector to use instead of a new one (shared memory); it is overwritten.
    """

    def __init__(
        self, module: nn.Module, device: str | torch.device = "cpu", memory: Tensor | None = None
    ) -> None:
        self.module = module.to(device)
        named = dict(module.named_parameters())
        trained = {name: entry for name, entry in named.items() if entry.requires_grad}
        frozen = {name: entry for name, entry in named.items() if name not in trained}
        others = {**frozen, **dict(module.named_buffers())}
        entries = {**trained, **{k: v for k, v in others.items() if v.is_floating_point()}}
        for name, entry in entries.items():
            if entry.dtype != torch.float32:
                raise ValueError(f"{name} is {entry.dtype}; Veldt keeps all weights in float32")
        self.num_trained = sum(entry.numel() for entry in trained.values())
        self.size = sum(entry.numel() for entry in entries.values())
        if memory is None:
            memory = torch.empty(self.size, dtype=torch.float32, device=device)
        elif memory.shape != (self.size,) or memory.dtype != torch.float32:
            raise ValueError(f"memory must be a float32 vector of {self.size} entries")
        self.vector = memory
        self.gradient = torch.zeros(self.num_trained, dtype=torch.float32, device=device)
        self._spans: dict[str, slice] = {}
        start = 0
        for name, entry in entries.items():
            span = slice(start, start + entry.numel())
            self.vector[span].copy_(entry.detach().reshape(-1))
            entry.data = self.vector[span].view(entry.shape)
            if name in trained:
                entry.grad = self.gradient[span].view(entry.shape)
            self._spans[name] = span
            start = span.stop

    def numpy(self) -> np.ndarray:
        """The vector as an array over the same memory; CPU only."""
        return self.vector.numpy()

    def load(self, source: np.ndarray | Tensor) -> None:
        """Overwrite every weight and statistic from a vector of the same size."""
        if isinstance(source, np.ndarray):
            source = torch.from_numpy(source)
        if source.shape != self.vector.shape:
            raise ValueError(f"expected {self.size} parameters, got {tuple(source.shape)}")
        self.vector.copy_(source)

    def zero_gradient(self) -> None:
        self.gradient.zero_()

    def span(self, prefix: str) -> slice:
        """Place of a submodule's trained parameters in `vector` and `gradient`."""
        spans = [
            span
            for name, span in self._spans.items()
            if span.stop <= self.num_trained and name.startswith(prefix + ".")
        ]
        if not spans:
            raise KeyError(prefix)
        return slice(spans[0].start, spans[-1].stop)
