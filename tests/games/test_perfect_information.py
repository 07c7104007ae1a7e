# SPDX-License-Identifier: Apache-2.0
"""Minimax in tic-tac-toe and alpha-beta in Connect Four against slow searches and known facts."""

import copy

import numpy as np
import pytest
from slow_games import SlowConnectFour, SlowTicTacToe

from veldt.games import alpha_beta_kernels as kernels
from veldt.games.alpha_beta import alpha_beta_moves, play_against_alpha_beta
from veldt.games.full_width import full_width_moves
from veldt.games.minimax import (
    Lines,
    losses_against_minimax,
    minimax_policy,
    minimax_value,
    perfect_moves,
)
from veldt.games.tic_tac_toe import EMPTY


def first_free(observations, legal):
    return legal * np.arange(legal.shape[1], 0, -1)


def uniform(observations, legal):
    return legal / legal.sum(axis=1, keepdims=True)


def test_tic_tac_toe_is_a_draw_with_5478_positions():
    minimax_value.cache_clear()
    assert minimax_value(0, 0) == 0
    assert minimax_value.cache_info().currsize == 5478


def board(text):
    marks = {"x": 0, "o": 1, ".": EMPTY}
    return np.array([[marks[cell] for cell in text.replace(" ", "")]])


def test_perfect_moves_by_hand():
    cells = board("xx. oo. ...")
    assert cells.tolist() == [[0, 0, EMPTY, 1, 1, EMPTY, EMPTY, EMPTY, EMPTY]]
    assert np.flatnonzero(perfect_moves(cells, 0)).tolist() == [2]
    # Cell 2 defends and threatens twice, so it wins as surely as cell 5.
    assert np.flatnonzero(perfect_moves(cells, 1)).tolist() == [2, 5]
    # A corner is answered by the centre alone, the centre by a corner.
    assert np.flatnonzero(perfect_moves(board("x.. ... ..."), 1)).tolist() == [4]
    assert np.flatnonzero(perfect_moves(board("... .x. ..."), 1)).tolist() == [0, 2, 6, 8]
    assert perfect_moves(board("... ... ..."), 0).all()


def slow_lines(seat, game=None):
    """Wins, draws and losses of who takes the first free cell, one game after the other."""
    game = game or SlowTicTacToe()
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


def test_every_line_is_counted():
    first, second = losses_against_minimax(first_free)
    assert first == Lines(*slow_lines(0))
    assert second == Lines(*slow_lines(1))
    assert second.losses > 0


def test_perfect_play_never_loses():
    for every_move in (True, False):
        first, second = losses_against_minimax(minimax_policy, every_move)
        assert first.losses == second.losses == 0
        assert (first.wins > 0) == (second.wins > 0) == every_move
    first, second = losses_against_minimax(first_free, every_move=False)
    assert first.wins == second.wins == 0
    assert second.losses > 0


def bitboards(game):
    """Of who moves, and of the other."""
    marks = ("xo"[game.turn], "xo"[1 - game.turn])
    cells = [(row, column) for row in range(6) for column in range(7)]
    return [sum(1 << (7 * c + r) for r, c in cells if game.grid[r][c] == mark) for mark in marks]


def slow_worth(game, mover):
    """Every place for four, cell by cell."""
    worth = 0
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                places = [(row + down * i, column + right * i) for i in range(4)]
                if not all(0 <= r < 6 and 0 <= c < 7 for r, c in places):
                    continue
                marks = [game.grid[r][c] for r, c in places]
                own, other = marks.count("xo"[mover]), marks.count("xo"[1 - mover])
                if other == 0:
                    worth += (0, 1, 4, 16)[own]
                elif own == 0:
                    worth -= (0, 1, 4, 16)[other]
    return worth


def slow_search(game, depth):
    """The worth of each column for who moves, without any cut."""
    worths = {}
    for column in game.legal():
        following = copy.deepcopy(game)
        following.play(column)
        if following.wins("xo"[game.turn]):
            worths[column] = kernels.WIN + depth
        elif depth == 1:
            worths[column] = -slow_worth(following, following.turn)
        else:
            worths[column] = -max(slow_search(following, depth - 1).values(), default=0)
    return worths


def random_position(random, most_moves):
    game = SlowConnectFour()
    for _ in range(random.integers(most_moves)):
        game.play(int(random.choice(game.legal())))
        if game.over:
            return random_position(random, most_moves)
    return game


@pytest.mark.parametrize(("depth", "count"), [(1, 12), (2, 6), (3, 1)])
def test_alpha_beta_finds_what_a_full_search_finds(depth, count):
    random = np.random.default_rng(depth)
    for _ in range(count):
        game = random_position(random, 38)
        worths = slow_search(game, depth)
        best = {column for column, worth in worths.items() if worth == max(worths.values())}
        own, other = (np.full(60, stones) for stones in bitboards(game))
        assert set(alpha_beta_moves(own, other, depth, random).tolist()) == best


def test_without_numba_every_line_is_looked_at_and_the_moves_are_the_same():
    random = np.random.default_rng(7)
    boards = [bitboards(random_position(random, 38)) for _ in range(60)]
    own, other = (np.array(side) for side in zip(*boards, strict=True))
    for depth in (1, 2, 4):
        draws, moves = random.random(len(own)), np.full(len(own), -1)
        kernels.best_moves(own, other, depth, draws, moves)
        np.testing.assert_array_equal(full_width_moves(own, other, depth, draws), moves)


def position(moves):
    game = SlowConnectFour()
    for move in moves:
        game.play(move)
    return [np.array([stones]) for stones in bitboards(game)]


def test_alpha_beta_wins_and_defends():
    random = np.random.default_rng(0)
    for depth in (1, 2, 4):
        assert alpha_beta_moves(*position([0, 1, 0, 1, 0, 1]), depth, random).tolist() == [0]
    for depth in (2, 4):
        assert alpha_beta_moves(*position([0, 1, 0, 1, 0]), depth, random).tolist() == [0]
    # Two on the floor with both sides free: three more plies see that only a neighbour defends.
    own, other = (np.repeat(stones, 20) for stones in position([2, 2, 3]))
    assert set(alpha_beta_moves(own, other, 4, random).tolist()) <= {1, 4}
    with pytest.raises(ValueError, match="look at least 1 move ahead"):
        alpha_beta_moves(own, other, 0, random)


def test_matches_are_played_from_both_seats_and_repeat():
    score = play_against_alpha_beta(uniform, 200, depth=4, seed=1, greedy=False)
    assert sum(score.wins) + sum(score.draws) + sum(score.losses) == 200
    assert score.wins[0] + score.draws[0] + score.losses[0] == 100
    assert score.win_rate < 0.05
    assert score == play_against_alpha_beta(uniform, 200, depth=4, seed=1, greedy=False)

    def searching(observations, legal):
        bits = 7 * (np.arange(42) % 7) + np.arange(42) // 7
        own, other = (
            (observations[:, part : part + 42].astype(np.int64) << bits).sum(axis=1)
            for part in (42, 84)
        )
        return np.eye(7)[alpha_beta_moves(own, other, 4, np.random.default_rng(0))]

    equal = play_against_alpha_beta(searching, 300, depth=4)
    assert 0.3 < equal.win_rate < 0.6
    assert play_against_alpha_beta(searching, 300, depth=1).win_rate > 0.75
