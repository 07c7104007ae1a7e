# SPDX-License-Identifier: Apache-2.0
"""PettingZoo games under our interface: real ones, and small ones with known answers."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from veldt.commands.envs import env_ids
from veldt.errors import ConfigurationError
from veldt.games import make_game
from veldt.games.interface import actions_of
from veldt.games.pettingzoo_games import PettingZooGames

pettingzoo = pytest.importorskip("pettingzoo")

from small_pettingzoo import Countdown, TakingTurns  # noqa: E402 - it needs PettingZoo


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("pettingzoo:classic.tictactoe_v3", "veldt:tic_tac_toe"),
        ("pettingzoo:pettingzoo.classic.connect_four_v3", "veldt:connect_four"),
    ],
)
def test_classic_games_are_our_native_ones(theirs, ours):
    """Lines of tic-tac-toe stay lines when rows and columns change places, as they do here."""
    native, game = make_game(ours, 3), make_game(theirs, 3)
    native.reset()
    game.reset()
    assert not game.spec.simultaneous
    assert game.spec.action == native.spec.action
    assert [leaf.name for leaf in game.spec.observation] == ["observation.observation"]
    random, ends = np.random.default_rng(0), 0
    for _ in range(60):
        np.testing.assert_array_equal(game.to_act, native.to_act)
        np.testing.assert_array_equal(game.legal_all(), native.legal_all())
        seen = game.observe(game.turn)["observation.observation"]
        assert seen.dtype == np.float32
        own = native.observe(native.turn)["observation"]
        np.testing.assert_array_equal(seen.sum(axis=1), own[:, own.shape[1] // 3 :].sum(axis=1))
        legal = game.legal(game.turn)
        moves = np.where(legal, random.random(legal.shape), -1.0).argmax(axis=1)
        one, two = (each.step(actions_of(each.turn, moves, 2)) for each in (game, native))
        for name in ("rewards", "terminated", "truncated", "over"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
        ends += int(one.over.sum())
        game.begin(one.over)
        native.begin(two.over)
    assert ends > 3
    game.close()


def spread(num_games, **options):
    return make_game("pettingzoo:mpe2.simple_spread_v3", num_games, 5, **options)


def test_a_parallel_game_of_three():
    pytest.importorskip("mpe2")
    game = spread(2, max_cycles=4)
    assert (game.spec.num_players, game.spec.simultaneous) == (3, True)
    assert game.spec.action.sizes == (5,)
    assert game.spec.observation[0].shape == (18,)
    seen = []
    for number in range(16):
        if number % 8 == 0:
            game.reset(5)
        step = game.step(np.full((2, 3), number % 8 % 5))
        assert step.truncated.all() == step.truncated.any() == (number % 4 == 3)
        assert not step.terminated.any()
        assert step.over.tolist() == [number % 4 == 3] * 2
        game.begin(step.over)
        seen.append(game.observe_all()["observation"])
    np.testing.assert_array_equal(seen[:8], seen[8:])
    assert not np.array_equal(seen[0][0], seen[0][1])  # each game has its own seed
    assert not np.array_equal(seen[3], seen[7])  # and continues from it
    game = spread(1, continuous_actions=True)
    game.reset()
    assert (game.spec.action.kind, game.spec.action_mask_size) == ("box", 0)
    assert game.step(np.full((1, 3, 5), 0.5, dtype=np.float32)).rewards.shape == (1, 3)


def test_unequal_spaces_are_filled_up():
    pytest.importorskip("mpe2")
    tag = make_game("pettingzoo:mpe2.simple_tag_v3", 1)
    tag.reset()
    tag.step(np.ones((1, 4), dtype=int))
    seen = tag.observe_all()["observation"]
    assert seen.shape == (1, 4, 16)
    assert seen[0, 0, 14:].any()
    assert not seen[0, 3, 14:].any()

    talk = make_game("pettingzoo:mpe2.simple_speaker_listener_v4", 1)
    talk.reset()
    assert talk.agents == ["speaker_0", "listener_0"]
    assert talk.spec.action.sizes == (5,)
    assert talk.legal_all()[0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    talk.step(np.array([[2, 4]]))


def test_an_agent_that_is_removed_without_a_flag_is_truncated():
    game = PettingZooGames(lambda: Countdown(silent=True), 1)
    game.reset()
    truncated = [game.step(np.zeros((1, 3), dtype=int)).truncated[0].tolist() for _ in range(3)]
    assert truncated == [[True, False, False], [False, False, True], [False, True, False]]
    assert game.over.all()


def test_turns_continue_without_the_agent_that_left():
    game = PettingZooGames(TakingTurns, 1)
    game.reset()
    assert game.spec.observation[0].kind == "discrete"
    turns, rewards, terminated = [], [], []
    for move in range(6):
        turns.append(int(game.turn[0]))
        assert game.observe(game.turn)["observation"].tolist() == [move]
        assert game.legal(game.turn).tolist() == [[move % 2 == 0, move % 2 == 1]]
        step = game.step(actions_of(game.turn, np.array([move % 2]), 3))
        rewards.append(step.rewards[0].round(3).tolist())
        terminated.append(step.terminated[0].tolist())
    assert turns == [0, 1, 2, 0, 2, 0]
    assert [row[1] for row in terminated] == [False, False, True, False, False, False]
    assert step.truncated[0].tolist() == [True, False, True]
    assert step.over.all()
    # The game pays agent b once more before its turn removes it: reported as it is.
    assert [row[1] for row in rewards] == pytest.approx([0.1, 1.0, 0.1, 0.1, 0.0, 0.0])
    assert [row[0] for row in rewards] == pytest.approx([1.0, 0.1, 0.1, 1.0, 0.1, 1.0])
    # The agent that left saw the third move last.
    assert game.observe(np.array([1]))["observation"].tolist() == [3]
    assert game.observe(np.array([0]))["observation"].tolist() == [6]
    game.begin(step.over)
    assert game.to_act.tolist() == [[True, False, False]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Countdown(agent_1=spaces.Discrete(3)), "observation spaces .* differ: agent_0"),
        (
            lambda: Countdown(agent_2_action=spaces.Box(0.0, 1.0, (1,))),
            "action spaces .* differ: agent_0 has Discrete.* agent_2 has Box",
        ),
        (lambda: gymnasium.make("CartPole-v1"), "is no PettingZoo environment"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        PettingZooGames(make, 1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("padded", [False, True])
def test_observations_of_a_wrong_shape_are_refused(padded):
    longer = {"agent_1": spaces.Box(-9.0, 99.0, (4,), np.float32)} if padded else {}
    game = PettingZooGames(lambda: Countdown(shape=(3,), **longer), 2)
    game.reset()
    with pytest.raises(ConfigurationError, match="not in its observation space"):
        game.observe(np.zeros(2, dtype=int))


def test_names_of_modules_and_registered_ids():
    meant = "did you mean pettingzoo:classic.tictactoe_v3"
    for name, words in (
        ("no_such_game", "no_such_game'; name one such as"),
        ("json", "neither parallel_env nor env"),
        ("classic.tictacto_v3", meant),
        ("tictactoe", meant),
    ):
        with pytest.raises(ConfigurationError, match=words):
            make_game(f"pettingzoo:{name}", 1)
    with pytest.raises(ConfigurationError, match="cannot make"):
        make_game("pettingzoo:pettingzoo.classic.tictactoe_v3", 1, colour="red")
    assert "pettingzoo:classic.tictactoe_v3" in env_ids("tictactoe_v3")
    if hasattr(pettingzoo, "make"):
        with pytest.raises(ConfigurationError, match=meant):
            make_game("pettingzoo:classic/tictacto-v3", 1)
        game = make_game("pettingzoo:classic/tictactoe-v3", 1)
        assert game.agents == ["player_1", "player_2"]
        assert not game.spec.simultaneous


def test_boards_of_classic_games_are_drawn():
    game = make_game("pettingzoo:classic.tictactoe_v3", 1)
    game.reset(0)
    for move in (4, 0):
        game.step(np.where(game.to_act, move, 0))
    assert game.drawn(0) == "O . .\n. X .\n. . ."
    assert game.drawn(1) == "X . .\n. O .\n. . ."
    assert PettingZooGames(TakingTurns, 1).drawn(0) == "ansi"
