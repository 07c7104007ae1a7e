# SPDX-License-Identifier: Apache-2.0
"""The counting game proves that rewards, masks and ends reach the right player's column."""

import numpy as np
import pytest
from counting_game import DEFAULT_ORDER, CountingGame, allowed, learning_rows, length_of
from simple_players import RandomOpponents

from veldt.environments import EnvironmentFactory
from veldt.games import make_game
from veldt.games.pettingzoo_games import PettingZooGames
from veldt.games.seats import LearningSeat, SeatColumns

PLAYERS = 3


class Witness(RandomOpponents):
    """Checks what opponents are shown, and keeps the results."""

    def __init__(self):
        super().__init__()
        self.results = []

    def act(self, turns):
        games, players, observations, legal = turns
        for game, player, seen, mask in zip(
            games, players, observations["observation"], legal, strict=True
        ):
            _, episode, moves, _ = seen
            assert seen.tolist() == [game, episode, moves, player]
            assert player == DEFAULT_ORDER[int(moves) % 4] != (game + episode) % PLAYERS
            assert mask.tolist() == allowed(moves, player)
        return super().act(turns)

    def game_over(self, games, seats, returns):
        rows = zip(games.tolist(), seats.tolist(), returns.tolist(), strict=True)
        self.results.extend((game, seat, *paid) for game, seat, paid in rows)


def first_legal(environment):
    return environment.observations["action_mask"].argmax(axis=1)


def test_every_row_of_the_learning_seat_is_its_own():
    witness = Witness()

    def make(num_envs):
        return LearningSeat(CountingGame(num_envs), witness)

    environment = EnvironmentFactory(make).make(5, seed=0)
    witness.results.clear()
    environment.reset()
    num_rows = 30
    expected = [learning_rows(game, num_rows) for game in range(5)]
    for number in range(num_rows):
        before = {name: array.copy() for name, array in environment.observations.items()}
        step = environment.step(first_legal(environment))
        for game in range(5):
            row = expected[game][number]
            assert before["observation"][game].tolist() == row["seen"]
            assert before["action_mask"][game].tolist() == row["mask"]
            assert step.reward[game] == row["reward"]
            assert step.terminated[game] == row["terminated"]
            assert step.truncated[game] == row["truncated"]
            if row["final"]:
                final = step.final_observations["final_observation"][game]
                assert final.tolist() == row["final"]
        assert not step.ignored.any()
        assert step.env_steps == 5
    for game in range(5):
        results = [result[1:] for result in witness.results if result[0] == game]
        assert len(results) > 10
        for episode, (seat, *returns) in enumerate(results):
            length = length_of(game, episode)
            moves = length * (length + 1) // 2
            assert seat == (game + episode) % PLAYERS
            assert returns == [1000 * player * length + moves for player in range(PLAYERS)]


def column_rows(game, player, num_rows):
    """What the contract says of one seat's column, step by step."""
    rows, episode = [], 0
    while len(rows) < num_rows:
        length = length_of(game, episode)
        for move in range(length):
            acts, last = DEFAULT_ORDER[move % 4] == player, move + 1 == length
            rows.append(
                {
                    "seen": [game, episode, move, player],
                    "mask": allowed(move, player) if acts else [True, False, False, False],
                    "reward": 1000 * player + move + 1,
                    "terminated": last and episode % 2 == 0,
                    "truncated": last and episode % 2 == 1,
                    "final": [game, episode, length, player] if last else None,
                }
            )
        episode += 1
    return rows[:num_rows]


def test_every_seat_has_its_own_column():
    def make(num_envs):
        games = -(-num_envs // PLAYERS)
        return SeatColumns(CountingGame(games), num_envs)

    factory = EnvironmentFactory(make)
    assert factory.spec().same_step_reset
    assert factory.spec().action_mask_size == 4
    environment = factory.make(9, seed=0)
    environment.reset()
    expected = [column_rows(*divmod(column, PLAYERS), 40) for column in range(9)]
    for number in range(40):
        before = {name: array.copy() for name, array in environment.observations.items()}
        step = environment.step(first_legal(environment))
        for column in range(9):
            row = expected[column][number]
            assert before["observation"][column].tolist() == row["seen"]
            assert before["action_mask"][column].tolist() == row["mask"]
            for name in ("reward", "terminated", "truncated"):
                assert getattr(step, name)[column] == row[name], name
            assert not step.ignored[column]
            if row["final"]:
                final = step.final_observations["final_observation"][column]
                assert final.tolist() == row["final"]


def test_a_simultaneous_game_has_no_waiting_rows():
    columns = SeatColumns(make_game("veldt:rock_paper_scissors", 2))
    _, info = columns.reset()
    assert info["action_mask"].all()
    _, rewards, terminated, _, info = columns.step(np.array([0, 1, 2, 1]))
    assert rewards.tolist() == [-1, 1, 1, -1]
    assert terminated.all()
    learning = LearningSeat(make_game("veldt:rock_paper_scissors", 4), RandomOpponents())
    learning.reset()
    assert learning.seats.tolist() == [0, 1, 0, 1]
    assert learning.step(np.zeros(4, dtype=int))[2].all()
    assert learning.seats.tolist() == [1, 0, 1, 0]


def test_agents_that_leave_wait_for_the_next_game():
    countdown = pytest.importorskip("small_pettingzoo").Countdown
    columns = SeatColumns(PettingZooGames(countdown, 1))
    columns.reset()
    answers = [columns.step(np.zeros(3, dtype=int)) for _ in range(4)]
    assert [answer[2].tolist() for answer in answers] == [
        [True, False, False],
        [False, False, True],
        [False, True, False],
        [True, False, False],
    ]
    assert [answer[1].tolist() for answer in answers[:3]] == [[1, 11, 21], [0, 12, 22], [0, 13, 0]]
    finals = [answer[4]["final_obs"][answer[4]["_final_obs"]].tolist() for answer in answers]
    assert finals == [[[0, 1]], [[2, 2]], [[1, 3]], [[0, 1]]]
    assert answers[2][0].tolist() == [[0, 0], [1, 0], [2, 0]]

    learning = LearningSeat(PettingZooGames(countdown, 3), RandomOpponents())
    learning.reset()
    rows = [learning.step(np.zeros(3, dtype=int)) for _ in range(3)]
    assert [row[1].tolist() for row in rows] == [[1, 11, 21], [11, 12, 22], [12, 13, 1]]
    assert [row[2].tolist() for row in rows] == [
        [True, False, False],
        [False, False, True],
        [False, True, True],
    ]
