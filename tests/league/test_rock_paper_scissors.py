# SPDX-License-Identifier: Apache-2.0
"""Self-play against the latest model runs in circles; against a pool its mixture does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import veldt

SETTINGS = {
    "backend": "serial",
    "num_actors": 1,
    "total_env_steps": 150_000,
    "envs_per_actor": 32,
    "trajectory_steps": 4,
    "batch_trajectories": 1,
    "freeze_env_steps": 2500,
    "measure_env_steps": 5000,
    "network_options": {"hidden_sizes": (16,)},
    "learning_rate": 1e-2,
    "decay_learning_rate": False,
    "entropy_coefficient": 0.2,
    "final_entropy": None,
    "self_play_share": 0.0,
    "max_frozen": 64,
    "normalize_returns": False,
    "evaluation_episodes": 0,
}


def distances(matchmaking: str, run_dir: Path) -> tuple[list[float], float]:
    """Of the last model to a third each over the second half of the run; of the mixture."""
    result = veldt.train(
        "league",
        "veldt:rock_paper_scissors",
        matchmaking=matchmaking,
        run_dir=str(run_dir),
        **SETTINGS,
    )
    assert result.league is not None
    text = (run_dir / "league" / "measures.jsonl").read_text()
    last = [json.loads(line)["distance.last"] for line in text.splitlines()]
    return last[len(last) // 2 :], result.league["measures"]["distance.mixture"]


@pytest.mark.timeout(300)
def test_the_latest_model_cycles_and_the_mixture_of_the_league_does_not(tmp_path):
    cycling, _ = distances("latest", tmp_path / "latest")
    settled, mixture = distances("pfsp", tmp_path / "pfsp")
    assert max(cycling) > 0.3
    assert max(settled) < max(cycling) - 0.1
    assert mixture < 0.05
