# SPDX-License-Identifier: Apache-2.0
"""Openings that chance plays, and the exact measure of tic-tac-toe."""

import copy

import numpy as np
import pytest
from slow_games import SlowTicTacToe

from veldt.errors import ConfigurationError
from veldt.games import make_game
from veldt.games.board_games import COLUMNS, ConnectFour, TicTacToe
from veldt.games.solvers import Lines, tic_tac_toe_lines


def test_chance_plays_all_openings_alike():
    game = make_game("veldt:connect_four", 4900, seed=1, opening_moves=2)
    game.reset()
    assert (game.num_moves == 2).all()
    assert (game.turns == 0).all()
    openings, counts = np.unique(game.stones, axis=0, return_counts=True)
    assert len(openings) == COLUMNS**2
    assert counts.min() > 60
    three = ConnectFour(8, opening_moves=3)
    three.reset()
    assert (three.turns == 1).all()


def test_chance_plays_up_to_four_moves_of_tic_tac_toe():
    game = make_game("veldt:tic_tac_toe", 20_000, seed=1, opening_moves=4)
    game.reset()
    stones = np.stack([(game.cells == player).sum(axis=1) for player in (0, 1)])
    moves = stones.sum(axis=0)
    np.testing.assert_allclose(np.bincount(moves) / len(moves), 0.2, atol=0.02)
    np.testing.assert_array_equal(game.turn, moves % 2)
    np.testing.assert_array_equal(stones[0] - stones[1], moves % 2)
    taken = (game.cells[moves == 4] >= 0).mean(axis=0)
    np.testing.assert_allclose(taken, 4 / 9, atol=0.04)
    assert (TicTacToe(8).cells < 0).all()


@pytest.mark.parametrize(("game", "most"), [(TicTacToe, 4), (ConnectFour, 5)])
def test_openings_that_could_win_are_refused(game, most):
    with pytest.raises(ConfigurationError, match=f"use 0 to {most}"):
        game(1, opening_moves=most + 1)


def slow_lines(seat, game):
    """Wins, draws and losses of a player that takes the first free cell, one game at a time."""
    if game.over:
        reward = game.rewards()[seat]
        return np.array([reward == 1, reward == 0, reward == -1], dtype=int)
    moves = game.legal()[:1] if game.turn == seat else game.legal()
    total = np.zeros(3, dtype=int)
    for move in moves:
        following = copy.deepcopy(game)
        following.play(move)
        total += slow_lines(seat, following)
    return total


def test_every_line_of_tic_tac_toe_is_counted():
    for seat in (0, 1):
        lines = tic_tac_toe_lines(lambda seen, legal: legal * np.arange(9, 0, -1), seat)
        assert lines == Lines(*slow_lines(seat, SlowTicTacToe()))
    assert lines.losses > 0
