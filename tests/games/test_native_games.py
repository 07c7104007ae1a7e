# SPDX-License-Identifier: Apache-2.0
"""Every native game plays by its rules: random games against transcriptions, and known ends."""

import numpy as np
import pytest
from slow_games import (
    SlowConnectFour,
    SlowKuhn,
    SlowLeduc,
    SlowRockPaperScissors,
    SlowTicTacToe,
)

from veldt.errors import ConfigurationError
from veldt.games import GAMES, make_game
from veldt.games.interface import actions_of
from veldt.games.native import hashed
from veldt.games.poker import BET, CALL, FOLD, PASS, RAISE

SLOW = {
    "veldt:kuhn": SlowKuhn,
    "veldt:leduc": SlowLeduc,
    "veldt:tic_tac_toe": SlowTicTacToe,
    "veldt:connect_four": SlowConnectFour,
}
TURN_BASED = list(SLOW)


def random_moves(game, random):
    legal = game.legal(game.turn)
    return np.where(legal, random.random(legal.shape), -1.0).argmax(axis=1)


def check_against(game, slow, number):
    players = np.arange(2)
    for player in players:
        seen = game.observe(np.full(game.num_games, player))["observation"][number]
        assert seen.tolist() == slow.observation(player)
    if not slow.over:
        assert game.turn[number] == slow.turn
        assert game.to_act[number].tolist() == [slow.turn == 0, slow.turn == 1]
        assert np.flatnonzero(game.legal(game.turn)[number]).tolist() == slow.legal()


@pytest.mark.parametrize("name", TURN_BASED)
def test_random_games_follow_the_transcription(name):
    num_games = {"veldt:kuhn": 6, "veldt:leduc": 120}.get(name, 30)
    game, random = make_game(name, num_games), np.random.default_rng(1)
    for _ in range({"veldt:kuhn": 20, "veldt:leduc": 4}.get(name, 2)):
        game.deal(np.arange(num_games) % game.num_deals)
        slow = [SLOW[name](number % game.num_deals) for number in range(num_games)]
        while not game.waiting_for_reset.all():
            was_over = game.waiting_for_reset.copy()
            for number in np.flatnonzero(~was_over):
                check_against(game, slow[number], number)
            moves = random_moves(game, random)
            step = game.step(actions_of(game.turn, moves, 2), ~was_over)
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
    game, slow = make_game("veldt:rock_paper_scissors", 9), SlowRockPaperScissors()
    game.reset()
    pairs = np.array([(first, second) for first in range(3) for second in range(3)])
    assert game.to_act.all()
    assert game.legal_all().all()
    assert game.observe_all()["observation"].tolist() == [[[1.0], [1.0]]] * 9
    step = game.step(pairs)
    assert step.rewards.tolist() == [list(slow.rewards(*pair)) for pair in pairs]
    assert step.terminated.all()


def play(name, deal, moves):
    """The rewards of one game with a known deal."""
    game = make_game(name, 1)
    game.deal(np.array([deal]))
    for move in moves:
        step = game.step(actions_of(game.turn, np.array([move]), 2))
    assert step.over.all()
    return step.rewards[0].tolist()


def test_kuhn_by_hand():
    jack_queen, king_jack = 0, 4
    assert play("veldt:kuhn", jack_queen, [PASS, PASS]) == [-1, 1]
    assert play("veldt:kuhn", jack_queen, [BET, PASS]) == [1, -1]
    assert play("veldt:kuhn", jack_queen, [BET, BET]) == [-2, 2]
    assert play("veldt:kuhn", king_jack, [PASS, BET, PASS]) == [-1, 1]
    assert play("veldt:kuhn", king_jack, [PASS, BET, BET]) == [2, -2]


def test_leduc_by_hand():
    deals = SlowLeduc.deals
    pair, high, tie = (deals.index(deal) for deal in LEDUC_DEALS)
    most = [RAISE, RAISE, CALL]
    assert play("veldt:leduc", pair, [*most, *most]) == [13, -13]  # ante 1, then 2 x 2 and 2 x 4
    assert play("veldt:leduc", high, [CALL, CALL, CALL, CALL]) == [-1, 1]
    assert play("veldt:leduc", tie, [*most, CALL, RAISE, CALL]) == [0, 0]
    assert play("veldt:leduc", pair, [RAISE, FOLD]) == [1, -1]
    assert play("veldt:leduc", pair, [CALL, RAISE, FOLD]) == [-1, 1]
    assert play("veldt:leduc", pair, [RAISE, CALL, RAISE, RAISE, FOLD]) == [-7, 7]


LEDUC_DEALS = [("J1", "K1", "J2"), ("J1", "Q1", "K1"), ("Q1", "Q2", "J1")]


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


@pytest.mark.parametrize("name", TURN_BASED)
def test_illegal_actions_are_refused(name):
    game = make_game(name, 2)
    game.reset()
    with pytest.raises(ValueError, match="illegal in game 1"):
        game.step(np.array([[0, 0], [99, 0]]) + (1 if name == "veldt:leduc" else 0))
    if name == "veldt:leduc":
        with pytest.raises(ValueError, match="illegal in game 0"):
            game.step(np.full((2, 2), FOLD))


@pytest.mark.parametrize("name", GAMES)
def test_the_same_seed_plays_the_same_games(name):
    def history(seed):
        game, random = make_game(name, 5, seed), np.random.default_rng(0)
        game.reset()
        rows = []
        for _ in range(40):
            legal = game.legal_all()
            actions = np.where(legal, random.random(legal.shape), -1.0).argmax(axis=2)
            step = game.step(actions)
            rows.append((game.observe_all()["observation"], step.rewards, step.over))
        return [array for row in rows for array in row]

    first, again, other = history(3), history(3), history(4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    if GAMES[name].num_deals > 1:
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_cards_do_not_depend_on_the_pace_of_other_games():
    together, apart = make_game("veldt:leduc", 3, seed=7), make_game("veldt:leduc", 3, seed=7)
    together.reset()
    apart.reset()
    one = np.array([True, False, False])
    for game, times in ((together, 1), (apart, 10)):
        for _ in range(times):
            for _ in range(5):  # call four times, then the reset step
                game.step(np.full((3, 2), CALL), one)
    while apart.episodes[0] > together.episodes[0]:
        together.step(np.full((3, 2), CALL), one)
    everyone = ~one
    for game in (together, apart):
        for _ in range(5):
            game.step(np.full((3, 2), CALL), everyone)
    np.testing.assert_array_equal(together.cards, apart.cards)
    np.testing.assert_array_equal(apart.episodes, [10, 1, 1])


def test_every_deal_is_as_likely():
    games = np.repeat(np.arange(600), 200)
    episodes = np.tile(np.arange(200), 600)
    counts = np.bincount((hashed(5, games, episodes) % np.uint64(120)).astype(int), minlength=120)
    assert np.square(counts - 1000).sum() / 1000 < 180  # chi-squared, 119 degrees: 1 in 4000


@pytest.mark.parametrize("name", TURN_BASED)
def test_state_brings_a_game_back(name):
    game, random = make_game(name, 4, seed=2), np.random.default_rng(2)
    game.reset()
    for _ in range(5):
        game.step(actions_of(game.turn, random_moves(game, random), 2))
    copy = make_game(name, 4, seed=2)
    copy.load_state(game.state())
    for _ in range(30):
        moves = actions_of(game.turn, random_moves(game, random), 2)
        one, two = game.step(moves), copy.step(moves)
        np.testing.assert_array_equal(one.rewards, two.rewards)
        np.testing.assert_array_equal(
            game.observe_all()["observation"], copy.observe_all()["observation"]
        )


def test_unknown_games_are_refused():
    with pytest.raises(ConfigurationError, match="did you mean veldt:leduc"):
        make_game("veldt:leduck", 1)
    with pytest.raises(ConfigurationError, match="use 1 or more"):
        make_game("veldt:kuhn", 0)
