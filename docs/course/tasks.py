# SPDX-License-Identifier: Apache-2.0
"""Environments and a network that take a chosen time, so that two cores show who waits for whom.

Sleeping costs no core: many sleeping environments advance at the same time on a small machine, as
simulators on many machines would.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import torch
from torch import nn


class Slow(gymnasium.Wrapper):
    """Sleeps in every step."""

    def __init__(self, env: gymnasium.Env, step_ms: float, stall_ms: float, stall_chance: float):
        super().__init__(env)
        self.step_ms, self.stall_ms, self.stall_chance = step_ms, stall_ms, stall_chance

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        stalls = self.np_random.random() < self.stall_chance
        time.sleep((self.step_ms + self.stall_ms * stalls) / 1000)
        return self.env.step(action)


def slow_cartpole(step_ms: float = 5.0, stall_ms: float = 0.0, stall_chance: float = 0.0) -> Slow:
    """CartPole whose steps take longer.

    Args:
        step_ms: milliseconds that every step sleeps.
        stall_ms: milliseconds that some steps sleep in addition.
        stall_chance: share of these steps.
    """
    return Slow(gymnasium.make("CartPole-v1"), step_ms, stall_ms, stall_chance)


class SlowNetwork(nn.Sequential):
    """Two small layers; a forward pass that chooses actions takes 8 ms longer."""

    def __init__(self, spec: Any) -> None:
        super().__init__(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if torch.is_inference_mode_enabled():
            time.sleep(0.008)
        return super().forward(observation)
