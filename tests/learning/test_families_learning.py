# SPDX-License-Identifier: Apache-2.0
"""One task of each family, with the presets that its spaces select."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import veldt


class Quadrants(gymnasium.Env):
    """A dot in one of four quadrants of a small image inside nested dictionaries; a digit says
    whether to answer with that quadrant or with the next. Best 20, chance 5."""

    length = 20

    def __init__(self) -> None:
        image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {"seen": spaces.Dict({"image": image}), "digit": spaces.Discrete(2)}
        )
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._elapsed = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(int(action) == (self._quadrant + self._digit) % 4)
        self._elapsed += 1
        return self._observe(), reward, self._elapsed >= self.length, False, {}

    def _observe(self):
        self._quadrant, self._digit = (int(self.np_random.integers(n)) for n in (4, 2))
        image = np.zeros((8, 8, 3), np.uint8)
        row, column = self.np_random.integers(0, 4, 2)
        channel = self.np_random.integers(3)
        image[row + 4 * (self._quadrant // 2), column + 4 * (self._quadrant % 2), channel] = 255
        return {"seen": {"image": image}, "digit": self._digit}


def train(tmp_path, architecture, env, **options):
    return veldt.train(
        architecture, env=env, backend="serial", seed=1, run_dir=str(tmp_path / "run"), **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["a2c", "sample_factory"])
@pytest.mark.parametrize(
    ("env", "target", "env_steps", "options"),
    [
        ("CartPole-v1", 475.0, 300_000, {}),
        (Quadrants, 18.0, 300_000, {}),
        (
            "veldt/Memory-v0",
            0.9,
            200_000,
            {"recurrent": "lstm", "env_options": {"delay_env_steps": 20}},
        ),
    ],
    ids=["vectors", "small_images", "recurrent"],
)
def test_passes_over_the_data_solve_it(architecture, env, target, env_steps, options, tmp_path):
    result = train(
        tmp_path, architecture, env, target_return=target, total_env_steps=env_steps, **options
    )
    assert result.reached_target, f"mean return {result.mean_return_100} at the end"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_twin_critics_swing_the_pendulum_up_in_a_few_thousand_steps(algorithm, tmp_path):
    result = train(
        tmp_path,
        "apex",
        "Pendulum-v1",
        algorithm=algorithm,
        total_env_steps=6_000,
        critic_sizes=(64, 64),
    )
    assert result.evaluation_return >= -250.0
