# SPDX-License-Identifier: Apache-2.0
"""Randomness inside a loss that a resumed run repeats: it follows from the update's number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class UpdateNoise:
    """Draws anew for each `version`; nothing but the version has to be kept."""

    def __init__(self) -> None:
        self.version = 0

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(self.version)

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers on the device of `like`."""
        generator = self.generator(like.device)
        return torch.randn(shape, generator=generator, device=like.device)

    def state(self) -> dict[str, np.ndarray]:
        return {"noise_version": np.array(self.version)}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.version = int(state["noise_version"])
