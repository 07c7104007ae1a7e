# SPDX-License-Identifier: Apache-2.0
"""The scripted opponents of the league's benchmark."""

import copy

import numpy as np
import pytest
from slow_games import SlowConnectFour

from benchmarks import connect_four
from benchmarks.connect_four import alpha_beta_moves
from benchmarks.tic_tac_toe import minimax, minimax_value
from veldt.games import make_game
from veldt.games.interface import actions_of
from veldt.games.solvers import tic_tac_toe_losses


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


def test_minimax_never_loses():
    assert minimax_value(0, 0) == 0
    game = played("veldt:tic_tac_toe", (0, 3, 1, 4))
    assert minimax(*seen(game), np.random.default_rng(0))[0].tolist() == np.eye(9)[2].tolist()
    for seat in (0, 1):
        assert tic_tac_toe_losses(lambda rows, legal: minimax(rows, legal, None), seat) == 0
