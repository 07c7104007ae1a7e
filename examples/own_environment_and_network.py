# SPDX-License-Identifier: Apache-2.0
"""Your own environment and your own network, trained with IMPALA.

python examples/own_environment_and_network.py [--backend serial] [--env-steps 200000]
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import veldt


class Lights(gymnasium.Env):
    """Three lights, one of them lit; press the button below it. 20 presses, 1 for each right one:
    best 20, chance 20/3."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._presses = 0
        return self._light_one(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self._lit)
        self._presses += 1
        return self._light_one(), reward, self._presses == 20, False, {}

    def _light_one(self) -> np.ndarray:
        self._lit = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self._lit]


class TwoPaths(nn.Module):
    """A linear path and a nonlinear one, side by side."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.straight = nn.Linear(num_inputs, 16)
        self.bent = nn.Sequential(nn.Linear(num_inputs, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.straight(observation), self.bent(observation)), dim=1)


def make_network(spec: Any) -> nn.Module:
    """From the environment's spec to a module that maps observations [N, 3] to features [N, F]."""
    (leaf,) = spec.observation
    return TwoPaths(leaf.shape[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="process")
    parser.add_argument("--env-steps", type=int, default=200_000)
    given = parser.parse_args()
    result = veldt.train(
        "impala",
        env=Lights,
        network=make_network,
        backend=given.backend,
        total_env_steps=given.env_steps,
        target_return=19.5,
    )
    print(f"score {result.evaluation_return} after {result.env_steps:,} steps, best is 20")


if __name__ == "__main__":  # node processes import this file again
    main()
