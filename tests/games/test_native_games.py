# SPDX-License-Identifier: Apache-2.0
"""Every native game plays by its rules: random games against transcriptions, and known ends."""

import copy

import numpy as np
import pytest
from slow_games import SlowConnectFour, SlowKuhn, SlowLeduc, SlowTicTacToe

from veldt.errors import ConfigurationError
from veldt.games import GAMES, make_game
from veldt.games.interface import actions_of
from veldt.games.native_games import CALL, COLUMNS, FOLD, ConnectFour, TicTacToe
from veldt.games.solvers import tic_tac_toe_losses

SLOW = {
    "veldt:kuhn": SlowKuhn,
    "veldt:leduc": SlowLeduc,
    "veldt:tic_tac_toe": SlowTicTacToe,
    "veldt:connect_four": SlowConnectFour,
}


def random_moves(game, random):
    legal = game.legal(game.turn)
    return np.where(legal, random.random(legal.shape), -1.0).argmax(axis=1)


def check_against(game, slow, number):
    for player in range(2):
        seen = game.observe(np.full(game.num_games, player))["observation"][number]
        assert seen.tolist() == slow.observation(player)
    if not slow.over:
        assert game.turn[number] == slow.turn
        assert game.to_act[number].tolist() == [slow.turn == 0, slow.turn == 1]
        assert np.flatnonzero(game.legal(game.turn)[number]).tolist() == slow.legal()


@pytest.mark.parametrize("name", SLOW)
def test_random_games_follow_the_transcription(name):
    num_games = {"veldt:kuhn": 6, "veldt:leduc": 120}.get(name, 30)
    game, random = make_game(name, num_games), np.random.default_rng(1)
    for _ in range({"veldt:kuhn": 20, "veldt:leduc": 4}.get(name, 2)):
        game.deal(np.arange(num_games) % game.num_deals)
        slow = [SLOW[name](number % game.num_deals) for number in range(num_games)]
        while not game.over.all():
            was_over = game.over.copy()
            for number in np.flatnonzero(~was_over):
                check_against(game, slow[number], number)
            moves = random_moves(game, random)
            step = game.step(actions_of(game.turn, moves, 2))
            for number in np.flatnonzero(~was_over):
                slow[number].play(moves[number])
                over = slow[number].over
                assert step.over[number] == over
                assert step.terminated[number].tolist() == [over, over]
                rewards = slow[number].rewards() if over else (0, 0)
                assert tuple(step.rewards[number]) == rewards
                if over:
                    check_against(game, slow[number], number)
            assert not step.truncated.any()
            assert not step.rewards[was_over].any()


def test_rock_paper_scissors_is_played_at_once():
    game = make_game("veldt:rock_paper_scissors", 9)
    game.reset()
    pairs = np.array([(first, second) for first in range(3) for second in range(3)])
    assert game.to_act.all()
    assert game.legal_all().all()
    assert game.observe_all()["observation"].tolist() == [[[1.0], [1.0]]] * 9
    step = game.step(pairs)
    assert step.rewards[:, 0].tolist() == [0, -1, 1, 1, 0, -1, -1, 1, 0]
    assert step.rewards[:, 1].tolist() == [0, 1, -1, -1, 0, 1, 1, -1, 0]
    assert step.terminated.all()


def test_connect_four_fills_the_board_without_a_winner():
    # Known drawn game: columns in pairs, so that no four stones meet.
    game = make_game("veldt:connect_four", 1)
    game.reset()
    order = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3]
    order += [4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]
    for number, move in enumerate(order):
        step = game.step(actions_of(game.turn, np.array([move]), 2))
        assert step.over[0] == (number == 41)
    assert step.rewards.tolist() == [[0, 0]]


def test_illegal_actions_are_refused():
    game = make_game("veldt:leduc", 2)
    game.reset()
    with pytest.raises(ValueError, match="illegal in game 1"):
        game.step(np.array([[CALL, 0], [99, 0]]))
    with pytest.raises(ValueError, match="illegal in game 0"):
        game.step(np.full((2, 2), FOLD))


@pytest.mark.parametrize("name", GAMES)
def test_seeds_bring_games_back(name):
    def play(game, steps, random):
        rows = []
        for _ in range(steps):
            legal = game.legal_all()
            step = game.step(np.where(legal, random.random(legal.shape), -1.0).argmax(axis=2))
            game.begin(step.over)
            rows += [game.observe_all()["observation"], step.rewards, step.over]
        return rows

    def same(first, second):
        return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    games = [make_game(name, 5, seed) for seed in (3, 3, 4)]
    for game in games:
        game.reset()
    histories = [play(game, 40, np.random.default_rng(0)) for game in games]
    assert same(histories[0], histories[1])
    assert same(histories[0], histories[2]) == (games[0].num_deals == 1)


def test_cards_do_not_depend_on_the_pace_of_other_games():
    together, apart = make_game("veldt:leduc", 3, seed=7), make_game("veldt:leduc", 3, seed=7)
    one = np.array([True, False, False])

    def play(game, which):
        for _ in range(4):
            game.begin(game.step(np.full((3, 2), CALL), which).over)

    for game, times in ((together, 1), (apart, 10)):
        game.reset()
        for _ in range(times):
            play(game, one)
    while apart.episodes[0] > together.episodes[0]:
        play(together, one)
    for game in (together, apart):
        play(game, ~one)
    np.testing.assert_array_equal(together.cards, apart.cards)
    np.testing.assert_array_equal(apart.episodes, [10, 1, 1])


def test_openings_of_connect_four_are_equally_likely():
    game = make_game("veldt:connect_four", 4900, seed=1, opening_moves=2)
    game.reset()
    assert ((game.cells >= 0).sum(axis=1) == 2).all()
    assert (game.turns == 0).all()
    openings, counts = np.unique(game.cells, axis=0, return_counts=True)
    assert len(openings) == COLUMNS**2
    assert counts.min() > 60
    three = ConnectFour(8, opening_moves=3)
    three.reset()
    assert (three.turns == 1).all()


def test_up_to_four_moves_open_tic_tac_toe():
    game = make_game("veldt:tic_tac_toe", 20_000, seed=1, opening_moves=4)
    game.reset()
    stones = np.stack([(game.cells == player).sum(axis=1) for player in (0, 1)])
    moves = stones.sum(axis=0)
    np.testing.assert_allclose(np.bincount(moves) / len(moves), 0.2, atol=0.02)
    np.testing.assert_array_equal(game.turn, moves % 2)
    np.testing.assert_array_equal(stones[0] - stones[1], moves % 2)
    taken = (game.cells[moves == 4] >= 0).mean(axis=0)
    np.testing.assert_allclose(taken, 4 / 9, atol=0.04)


@pytest.mark.parametrize(("game", "most"), [(TicTacToe, 4), (ConnectFour, 5)])
def test_openings_that_could_win_are_refused(game, most):
    with pytest.raises(ConfigurationError, match=f"use 0 to {most}"):
        game(1, opening_moves=most + 1)


def slow_losses(seat, game):
    """Lost lines of a player that takes the first free cell, one game at a time."""
    if game.over:
        return int(game.rewards()[seat] == -1)
    moves = game.legal()[:1] if game.turn == seat else game.legal()
    total = 0
    for move in moves:
        following = copy.deepcopy(game)
        following.play(move)
        total += slow_losses(seat, following)
    return total


def test_every_lost_line_of_tic_tac_toe_is_counted():
    for seat in (0, 1):
        losses = tic_tac_toe_losses(lambda seen, legal: legal * np.arange(9, 0, -1), seat)
        assert losses == slow_losses(seat, SlowTicTacToe()) > 0
