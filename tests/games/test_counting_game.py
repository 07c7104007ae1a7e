# SPDX-License-Identifier: Apache-2.0
"""Resets, turns, masks and flags of the interface, in a game whose every row is known by hand."""

import numpy as np
import pytest
from counting_game import CountingGame

ANY = -7  # what is not to be looked at


def first_legal(game):
    """[B, P] with the smallest legal action for those to act and nonsense for the others."""
    actions = game.legal_all().argmax(axis=2)
    return np.where(game.to_act, actions, ANY)


def test_turns_masks_and_rewards_by_hand():
    game = CountingGame(1, lengths=(5,))
    game.reset()
    turns = []
    for move in range(1, 6):
        turns.append(int(game.turn[0]))
        assert game.to_act.sum() == 1
        legal = game.legal_all()[0]
        for player in range(3):
            seen = game.observe(np.array([player]))["observation"][0]
            assert seen.tolist() == [0, 0, move - 1, player]
            if player == turns[-1]:
                allowed = [(action + move - 1 + player) % 3 != 0 for action in range(4)]
                assert legal[player].tolist() == allowed
            else:
                assert legal[player].tolist() == [True, False, False, False]
        step = game.step(first_legal(game))
        assert step.rewards.tolist() == [[move, 1000 + move, 2000 + move]]
        assert step.acted[0].tolist() == [player == turns[-1] for player in range(3)]
        assert step.terminated[0].tolist() == [move == 5] * 3
        assert step.over.tolist() == [move == 5]
    assert turns == [0, 1, 1, 2, 0]


def test_the_step_after_an_end_is_a_reset_step():
    game = CountingGame(1, lengths=(2, 1))
    game.reset()
    game.step(first_legal(game))
    step = game.step(first_legal(game))
    assert step.terminated.all()
    assert not game.to_act.any()
    assert game.observe(np.array([2]))["observation"].tolist() == [[0, 0, 2, 2]]  # the true last
    assert game.legal_all().tolist() == [[[True, False, False, False]] * 3]
    step = game.step(np.full((1, 3), ANY))
    assert not step.acted.any()
    assert not step.rewards.any()
    assert not step.over.any()
    assert game.observe(np.array([2]))["observation"].tolist() == [[0, 1, 0, 2]]
    step = game.step(first_legal(game))  # odd episodes are truncated
    assert step.truncated.all()
    assert not step.terminated.any()


def test_a_reset_in_the_same_step_keeps_the_last_observations():
    game = CountingGame(2, lengths=(1, 2), same_step_reset=True)
    game.reset()
    step = game.step(first_legal(game))
    assert step.over.tolist() == [True, False]
    final = step.final_observations["observation"]
    assert final[0].tolist() == [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 1, 2]]
    assert game.observe_all()["observation"][:, 0].tolist() == [[0, 1, 0, 0], [1, 0, 1, 0]]
    assert game.to_act.tolist() == [[True, False, False], [False, True, False]]
    assert game.step(first_legal(game)).acted.sum() == 2


@pytest.mark.parametrize("same_step_reset", [False, True])
def test_games_that_are_not_stepped_stand_still(same_step_reset):
    game = CountingGame(3, same_step_reset=same_step_reset)
    game.reset()
    for _ in range(4):
        before = game.state()
        step = game.step(first_legal(game), np.array([False, True, False]))
        for name, array in game.state().items():
            np.testing.assert_array_equal(array[[0, 2]], before[name][[0, 2]])
        assert not step.acted[[0, 2]].any()
        assert not step.rewards[[0, 2]].any()
        assert not step.over[[0, 2]].any()
    assert game.episodes.tolist() == [0, 1, 0]


def test_all_act_at_once_in_a_simultaneous_game():
    game = CountingGame(2, lengths=(2,), simultaneous=True)
    game.reset()
    assert game.to_act.all()
    step = game.step(first_legal(game))
    assert step.acted.all()
    assert step.rewards.tolist() == [[1, 1001, 2001]] * 2


def test_an_illegal_action_of_one_of_several_is_refused():
    game = CountingGame(2, simultaneous=True)
    game.reset()
    actions = first_legal(game)
    actions[1, 2] = 1  # (1 + 0 + 2) % 3 is 0
    with pytest.raises(ValueError, match="illegal in game 1"):
        game.step(actions)
