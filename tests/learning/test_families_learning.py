# SPDX-License-Identifier: Apache-2.0
"""One task of each family, with the presets that its spaces select."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from veldt.environments.small_tasks import CatchEnvironment
from veldt.families import FAMILIES

_PIXELS = 8


def large_catch() -> gymnasium.Env:
    """Catch on a board as large as Atari's images."""
    board = CatchEnvironment()
    cell = np.full((_PIXELS, _PIXELS, 1), 255, np.uint8)
    rows, columns = board.rows * _PIXELS, board.columns * _PIXELS
    return gymnasium.wrappers.TransformObservation(
        board,
        lambda cells: np.kron(cells.astype(np.uint8), cell),
        spaces.Box(0, 255, (rows, columns, 1), np.uint8),
    )


_MEMORY = {"recurrent": "lstm", "env_options": {"delay_env_steps": 20}}
TASKS = [
    ("vectors", "ppo", "CartPole-v1", 475.0, 300_000, {}),
    # Best about 95; whoever does not find the goal gets 0 at most.
    ("continuous", "ppo", "MountainCarContinuous-v0", 60.0, 150_000, {}),
    ("continuous_wide", "ppo", "Hopper-v5", 300.0, 150_000, {}),  # chance about 20
    ("grids", "sample_factory", "veldt/Catch-v0", 0.9, 100_000, {}),  # best 1, chance -0.6
    ("grids_wide", "impala", "MinAtar/Breakout-v1", 4.0, 300_000, {}),  # chance 0.4
    ("small_images", "ppo", "veldt/NestedDict-v0", 15.0, 200_000, {}),  # best 20, chance 5
    ("atari", "ppo", large_catch, 0.5, 30_000, {}),  # best 1, chance -0.6
    ("vectors_recurrent", "sample_factory", "veldt/Memory-v0", 0.9, 200_000, _MEMORY),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "architecture", "env", "target", "env_steps", "options"),
    TASKS,
    ids=[task[0] for task in TASKS],
)
def test_it_is_learned(family, architecture, env, target, env_steps, options, train):
    result = train(architecture, env, target_return=target, total_env_steps=env_steps, **options)
    assert result.chosen["family"] == family


@pytest.mark.slow
def test_a_league_learns_not_to_lose(train, tmp_path):
    """Tic-tac-toe against every line of perfect play."""
    often = {"league_options": {"freeze_env_steps": 50_000, "measure_env_steps": 50_000}}
    result = train("league", "veldt:tic_tac_toe", total_env_steps=600_000, **often)
    assert result.chosen["family"] == "perfect_information"
    measured = (tmp_path / "run" / "league" / "measures.jsonl").read_text().splitlines()
    first = sum(value for name, value in json.loads(measured[0]).items() if "losses" in name)
    assert sum(result.league["best"]["measures"].values()) < first / 2


def test_every_family_is_among_them():
    learned = {family for family, *_ in TASKS}
    assert {"perfect_information", *learned} >= set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_twin_critics_swing_the_pendulum_up_in_a_few_thousand_steps(algorithm, train):
    steps = {"sac": 5_000, "td3": 8_000}[algorithm]
    assert train(algorithm, "Pendulum-v1", total_env_steps=steps).evaluation_return >= -250.0
