# SPDX-License-Identifier: Apache-2.0
"""One task of each family, with the presets that its spaces select."""

from __future__ import annotations

import pytest

import veldt


def train(tmp_path, architecture, env, **options):
    return veldt.train(
        architecture, env=env, backend="serial", seed=1, run_dir=str(tmp_path / "run"), **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "env", "target", "env_steps", "options"),
    [
        ("a2c", "CartPole-v1", 475.0, 300_000, {}),
        # Best about 95; whoever does not find the goal gets 0 at most.
        ("a2c", "MountainCarContinuous-v0", 60.0, 150_000, {}),
        ("sample_factory", "veldt/Catch-v0", 0.9, 100_000, {}),  # best 1, chance -0.6
        (
            "sample_factory",
            "veldt/Memory-v0",
            0.9,
            200_000,
            {"recurrent": "lstm", "env_options": {"delay_env_steps": 20}},
        ),
    ],
    ids=["vectors", "continuous", "small_images", "recurrent"],
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
        total_env_steps={"sac": 5_000, "td3": 8_000}[algorithm],
    )
    assert result.evaluation_return >= -250.0
