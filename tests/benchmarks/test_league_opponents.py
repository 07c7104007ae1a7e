# SPDX-License-Identifier: Apache-2.0
"""The scripted opponents and the network of the league's benchmark."""

import copy
import pickle

import numpy as np
import pytest
import torch
from slow_games import SlowConnectFour

from benchmarks import connect_four
from benchmarks.connect_four import CELLS, COLUMNS, ROWS, FourInARow, alpha_beta_moves
from benchmarks.tic_tac_toe import minimax, minimax_value
from veldt.games import make_game
from veldt.games.interface import actions_of
from veldt.games.solvers import tic_tac_toe_lines


def played(name, moves, num_games=1):
    game = make_game(name, num_games)
    game.reset()
    for move in moves:
        game.step(actions_of(game.turn, np.full(num_games, move), 2))
    return game


def seen(game):
    return game.observe(game.turn)["observation"], game.legal(game.turn)


def slow_worth(game, mover):
    """Places for four that only one side has stones in, cell by cell."""
    worth = 0
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                places = [(row + down * i, column + right * i) for i in range(4)]
                if all(0 <= r < 6 and 0 <= c < 7 for r, c in places):
                    marks = [game.grid[r][c] for r, c in places]
                    own, other = marks.count("xo"[mover]), marks.count("xo"[1 - mover])
                    worth += (0, 1, 4, 16, 0)[own] * (other == 0)
                    worth -= (0, 1, 4, 16, 0)[other] * (own == 0)
    return worth


def slow_search(game, depth):
    """The worth of each column for who moves, without any cut."""
    worths = {}
    for column in game.legal():
        following = copy.deepcopy(game)
        following.play(column)
        if following.wins("xo"[game.turn]):
            worths[column] = connect_four.WIN + depth
        elif depth == 1:
            worths[column] = -slow_worth(following, following.turn)
        else:
            worths[column] = -max(slow_search(following, depth - 1).values(), default=0)
    return worths


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "count"), [(1, 12), (2, 6)])
def test_alpha_beta_finds_what_a_full_search_finds(depth, count):
    random = np.random.default_rng(depth)
    while count:
        slow = SlowConnectFour()
        while not slow.over and len(slow.history) < 8 + 2 * count:
            slow.play(int(random.choice(slow.legal())))
        if slow.over:
            continue
        worths = slow_search(slow, depth)
        best = {column for column, worth in worths.items() if worth == max(worths.values())}
        game = played("veldt:connect_four", slow.history, num_games=60)
        boards = connect_four.boards_of(seen(game)[0])
        assert set(alpha_beta_moves(*boards, depth, random).tolist()) == best
        count -= 1


@pytest.mark.slow
def test_alpha_beta_defends_and_matches_repeat():
    script = pickle.loads(pickle.dumps(connect_four.alpha_beta_4))  # noqa: S301
    game = played("veldt:connect_four", [0, 1, 0, 1, 0])
    assert script(*seen(game), np.random.default_rng(0)).argmax(axis=1).tolist() == [0]

    def uniform(observations, legal):
        return legal / legal.sum(axis=1, keepdims=True)

    scores = [
        connect_four.play_against_alpha_beta(uniform, 100, depth=4, seed=1, greedy=False)
        for _ in range(2)
    ]
    assert scores[0] == scores[1]
    assert sum(scores[0].wins) + sum(scores[0].draws) + sum(scores[0].losses) == 100
    assert scores[0].win_rate < 0.05


def test_minimax_never_loses():
    assert minimax_value(0, 0) == 0
    game = played("veldt:tic_tac_toe", (0, 3, 1, 4))
    assert minimax(*seen(game), np.random.default_rng(0))[0].tolist() == np.eye(9)[2].tolist()
    for seat in (0, 1):
        lines = tic_tac_toe_lines(lambda rows, legal: minimax(rows, legal, None), seat)
        assert lines.losses == 0
        assert lines.wins > 0


def test_the_network_sees_what_can_be_won_and_must_be_stopped():
    # Both have three in their own column; it is the first player's turn.
    game = played("veldt:connect_four", [3, 5, 3, 5, 3, 5])
    maps, summaries = FourInARow()._maps(torch.from_numpy(seen(game)[0]))
    maps, columns = maps.view(-1, CELLS), summaries.view(-1, COLUMNS)
    own, other, playable, wins, losses = (maps[row].view(ROWS, COLUMNS) for row in range(5))
    assert own.nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]
    assert other.nonzero().tolist() == [[0, 5], [1, 5], [2, 5]]
    assert playable.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [0, 4], [0, 6], [3, 3], [3, 5]]
    assert wins.nonzero().tolist() == [[3, 3]]
    assert losses.nonzero().tolist() == [[3, 5]]
    assert columns.nonzero().tolist() == [[0, 3], [1, 5]]
