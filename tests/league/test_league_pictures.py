# SPDX-License-Identifier: Apache-2.0
"""What the live page and the report show of a league, from a run of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import veldt
from veldt.dashboard import charts
from veldt.dashboard.reading import RunReader, RunView


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("league") / "run"
    veldt.train(
        "league",
        "veldt:kuhn",
        backend="serial",
        run_dir=str(path),
        matchmaking="alphastar",
        total_env_steps=6000,
        freeze_env_steps=300,
        measure_env_steps=300,
        max_frozen=6,
        evaluation_episodes=0,
        network_options={"hidden_sizes": (8,)},
        envs_per_actor=8,
    )
    return path


@pytest.fixture(scope="module")
def view(run_dir) -> RunView:
    return RunReader(run_dir).read()


def test_the_payoff_is_a_heat_map_of_all_players(view):
    options = charts.payoff(view)
    players = options["xAxis"]["data"]
    assert players[0] == "main"
    assert len(players) == len(view.snapshots[-1]["elo"]) == 4 + 6
    assert sum(name.startswith("model ") for name in players) == 6
    cells = {(row, column): rate for column, row, rate in options["series"][0]["data"]}
    assert len(cells) == 10 * 9
    assert all(abs(cells[i, j] + cells[j, i] - 1.0) < 2e-3 for i, j in cells)


def test_a_resumed_run_takes_back_what_came_after_its_checkpoint(run_dir, tmp_path):
    folder = tmp_path / "league"
    folder.mkdir()
    (tmp_path / "config.json").write_text((run_dir / "config.json").read_text())
    steps = (100, 200, 300, 150, 250)
    lines = [json.dumps({"env_steps": step}) for step in steps]
    (folder / "league.jsonl").write_text("\n".join(lines) + "\n")
    found = RunReader(tmp_path).read().snapshots
    assert [entry["env_steps"] for entry in found] == [100, 150, 250]
