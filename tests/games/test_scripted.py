# SPDX-License-Identifier: Apache-2.0
"""Players that follow a rule, openings that chance plays, and the network that reads the board."""

import copy
import pickle

import numpy as np
import pytest
import torch

from veldt.errors import ConfigurationError
from veldt.games.alpha_beta import alpha_beta_moves
from veldt.games.board_networks import FourInARow
from veldt.games.connect_four import CELLS, COLUMNS, ROWS, ConnectFour, boards_of
from veldt.games.interface import actions_of
from veldt.games.making import make_games
from veldt.games.scripted import scripted_player
from veldt.games.tic_tac_toe import TicTacToe


def played(columns, num_games=1):
    game = ConnectFour(num_games)
    game.reset()
    for column in columns:
        game.step(actions_of(game.turn, np.full(num_games, column), 2))
    return game


def seen(game):
    return game.observe(game.turn)["observation"], game.legal(game.turn)


def test_chance_plays_all_openings_alike():
    game = make_games("veldt:connect_four", 4900, seed=1, opening_moves=2)
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
    game = make_games("veldt:tic_tac_toe", 20_000, seed=1, opening_moves=4)
    game.reset()
    stones = np.stack([(game.cells == player).sum(axis=1) for player in (0, 1)])
    moves = stones.sum(axis=0)
    np.testing.assert_allclose(np.bincount(moves) / len(moves), 0.2, atol=0.02)
    np.testing.assert_array_equal(game.turn, moves % 2)
    np.testing.assert_array_equal(stones[0] - stones[1], moves % 2)
    taken = (game.cells[moves == 4] >= 0).mean(axis=0)
    np.testing.assert_allclose(taken, 4 / 9, atol=0.04)
    assert (TicTacToe(8).cells < 0).all()
    with pytest.raises(ConfigurationError, match="use 0 to 4"):
        TicTacToe(1, opening_moves=5)


def test_more_openings_than_a_column_holds_are_refused():
    with pytest.raises(ConfigurationError, match="use 0 to 5"):
        ConnectFour(1, opening_moves=6)


def test_alpha_beta_sees_the_board_as_the_game_has_it():
    game = played([3, 3, 2, 4, 2], num_games=3)
    own, other = boards_of(seen(game)[0])
    np.testing.assert_array_equal(own, game.stones[:, 1])
    np.testing.assert_array_equal(other, game.stones[:, 0])
    # Actors get it in their own process.
    script = copy.deepcopy(scripted_player("alpha_beta:3", "veldt:connect_four"))
    pickle.dumps(script)
    moves = script(*seen(game), np.random.default_rng(5)).argmax(axis=1)
    expected = alpha_beta_moves(own, other, 3, np.random.default_rng(5))
    np.testing.assert_array_equal(moves, expected)


def test_minimax_takes_the_win_and_random_all_that_is_allowed():
    game = make_games("veldt:tic_tac_toe", 1)
    game.reset()
    for cell in (0, 3, 1, 4):
        game.step(actions_of(game.turn, np.array([cell]), 2))
    random = np.random.default_rng(0)
    perfect = scripted_player("minimax", "veldt:tic_tac_toe")(*seen(game), random)
    assert perfect[0].argmax() == 2
    assert perfect[0].max() == 1.0
    anything = scripted_player("random", "veldt:tic_tac_toe")(*seen(game), random)
    np.testing.assert_allclose(anything[0], seen(game)[1][0] / 5)


@pytest.mark.parametrize(
    ("name", "game", "reason"),
    [
        ("minimax", "veldt:connect_four", "use random or alpha_beta"),
        ("alpha_beta:4", "veldt:kuhn", "use random"),
        ("alpha_beta", "veldt:connect_four", "how far to look ahead"),
        ("alpha_beta:99", "veldt:connect_four", "at most alpha_beta:12"),
    ],
)
def test_who_cannot_play_is_refused_in_one_line(name, game, reason):
    with pytest.raises(ConfigurationError, match=reason):
        scripted_player(name, game)


def test_the_network_sees_what_can_be_won_and_must_be_stopped():
    # Both have three in their own column; it is the first player's turn.
    game = played([3, 5, 3, 5, 3, 5])
    maps, summaries = FourInARow()._maps(torch.from_numpy(seen(game)[0]))
    maps, columns = maps.view(-1, CELLS), summaries.view(-1, COLUMNS)
    own, other, playable, wins, losses = (maps[row].view(ROWS, COLUMNS) for row in range(5))
    assert own.nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]
    assert other.nonzero().tolist() == [[0, 5], [1, 5], [2, 5]]
    assert playable.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [0, 4], [0, 6], [3, 3], [3, 5]]
    assert wins.nonzero().tolist() == [[3, 3]]
    assert losses.nonzero().tolist() == [[3, 5]]
    assert columns.nonzero().tolist() == [[0, 3], [1, 5]]


def test_the_network_sees_what_a_stone_below_would_allow():
    # The first player has three in the second row, over a gap in column 3 that nobody has filled.
    game = played([0, 1, 2, 0, 1, 6, 2, 6])
    game.stones[0] = [
        sum(1 << (7 * c + 1) for c in (0, 1, 2)),
        sum(1 << (7 * c) for c in (0, 1, 2)),
    ]
    _, summaries = FourInARow()._maps(torch.from_numpy(seen(game)[0]))
    own_now, other_now, own_above, other_above = summaries.view(-1, COLUMNS)
    assert other_now.nonzero().tolist() == [[3]]
    assert own_above.nonzero().tolist() == [[3]]
    assert not own_now.any()
    assert not other_above.any()
