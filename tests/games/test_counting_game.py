# SPDX-License-Identifier: Apache-2.0
"""Ends, turns, masks and flags of the interface, in a game whose every row is known by hand."""

import numpy as np
import pytest
from counting_game import CountingGame

ANY = -7  # an action that must not be read


def first_legal(game):
    """[B, P] with the smallest legal action for those to act and nonsense for the others."""
    actions = game.legal_all().argmax(axis=2)
    return np.where(game.to_act, actions, ANY)


def test_a_game_that_is_over_waits_until_it_is_begun():
    game = CountingGame(2, lengths=(2, 1))
    game.reset()
    first = game.step(first_legal(game))
    assert first.over.tolist() == [False, True]
    step = game.step(first_legal(game))
    assert step.terminated.tolist() == [[True] * 3, [False] * 3]
    assert not step.rewards[1].any()
    assert not game.to_act.any()
    assert game.observe(np.array([2, 2]))["observation"].tolist() == [[0, 0, 2, 2], [1, 0, 1, 2]]
    assert game.legal_all().tolist() == [[[True, False, False, False]] * 3] * 2
    game.begin(np.array([True, False]))
    assert game.over.tolist() == [False, True]
    assert game.observe(np.array([2, 2]))["observation"].tolist() == [[0, 1, 0, 2], [1, 0, 1, 2]]
    step = game.step(first_legal(game))  # odd episodes are truncated
    assert step.truncated.tolist() == [[True] * 3, [False] * 3]
    assert not step.terminated.any()


def test_all_act_at_once_in_a_simultaneous_game():
    game = CountingGame(2, lengths=(2,), simultaneous=True)
    game.reset()
    assert game.to_act.all()
    actions = first_legal(game)
    actions[1, 2] = 1  # (1 + 0 + 2) % 3 is 0
    with pytest.raises(ValueError, match="illegal in game 1"):
        game.step(actions)
    assert game.step(first_legal(game)).rewards.tolist() == [[1, 1001, 2001]] * 2
