# SPDX-License-Identifier: Apache-2.0
"""The counting game through a league's actors: every number in the learning player's column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from counting_game import CountingGame, learning_rows

from veldt.backends.serial import SerialBackend
from veldt.games import GAMES
from veldt.league.state import LEAGUE
from veldt.options import RunOptions
from veldt.ports import ExperienceSource
from veldt.role import Role
from veldt.run.plan import make_plan

WIDTH, STEPS = 5, 6
KEPT: list[dict[str, np.ndarray]] = []


@dataclass(eq=False)
class Keeper(Role):
    """In the place of a learner: keeps what it is given."""

    source: ExperienceSource

    def step(self) -> bool:
        batch = self.source.take_batch()
        if batch is None:
            return False
        KEPT.append({name: array.copy() for name, array in batch.arrays.items()})
        self.source.release(batch)
        return True


@pytest.fixture
def played(tmp_path: Path, monkeypatch):
    """Columns [rows, WIDTH] of a run, and the league's state at its end."""
    monkeypatch.setitem(GAMES, "veldt:counting_game", CountingGame)
    options = RunOptions(
        "veldt:counting_game", backend="serial", num_actors=1, envs_per_actor=WIDTH
    )
    plan = make_plan("league", options, {"trajectory_steps": STEPS, "batch_trajectories": 1})
    [learner] = plan.topology.of("learner")
    learner.role = Keeper(learner.role.source)
    KEPT.clear()
    backend = SerialBackend(plan.topology, seed=3)
    backend.run_dir = tmp_path
    backend.start()
    try:
        for _ in range(4):
            backend.advance(0.0)
        state = plan.config.league.state_of(backend.parameters(LEAGUE).vector)
    finally:
        backend.stop()
    joined = {name: np.concatenate([one[name][:-1] for one in KEPT]) for name in KEPT[0]
              if KEPT[0][name].shape[:2] == (STEPS + 1, WIDTH)}  # fmt: skip
    return joined, state


def test_rewards_seats_masks_and_ends_reach_the_right_column(played):
    rows, _ = played
    assert len(rows["reward"]) > 100
    for game in range(WIDTH):
        for row, expected in enumerate(learning_rows(game, len(rows["reward"]))):
            assert rows["observation"][row, game].tolist() == expected["seen"], (game, row)
            assert rows["action_mask"][row, game].tolist() == expected["mask"]
            for name in ("reward", "terminated", "truncated"):
                assert rows[name][row, game] == expected[name]
            assert not rows["ignored"][row, game]
            assert expected["mask"][rows["action"][row, game]]
            if expected["final"]:
                assert rows["final_observation"][row, game].tolist() == expected["final"]


def test_an_episode_begins_after_each_end_and_nowhere_else(played):
    rows, _ = played
    ended = rows["terminated"] | rows["truncated"]
    assert rows["first"][0].all()
    np.testing.assert_array_equal(rows["first"][1:], ended[:-1])


def test_results_are_counted_by_seat(played):
    """Whoever has the last seat gets most: the learning player wins there and nowhere else."""
    _, state = played
    assert state.games > 50
    first = int(state.payoff.seated_first[0, 0])
    assert first == state.games  # against itself, it has both the first and the other seats
    assert state.env_steps[0] > 0
