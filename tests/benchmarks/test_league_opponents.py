# SPDX-License-Identifier: Apache-2.0
"""The scripted opponents of the league's benchmark."""

import numpy as np

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


def test_minimax_never_loses():
    assert minimax_value(0, 0) == 0
    game = played("veldt:tic_tac_toe", (0, 3, 1, 4))
    assert minimax(*seen(game), np.random.default_rng(0))[0].tolist() == np.eye(9)[2].tolist()
    for seat in (0, 1):
        assert tic_tac_toe_losses(lambda rows, legal: minimax(rows, legal, None), seat) == 0
