# SPDX-License-Identifier: Apache-2.0
"""What seats earn, on average over many games, is what the exact measures say."""

import numpy as np

from veldt.games import make_game
from veldt.games.exploitability import expected_value, opponent_reach, own_reach
from veldt.games.information_tree import information_tree
from veldt.games.seats import LearningSeat, RandomOpponents, SeatColumns


def test_the_learning_seat_earns_what_the_exact_value_says():
    """Always betting in Kuhn against uniform play, from both seats in turn."""
    tree = information_tree("veldt:kuhn")
    learning = LearningSeat(make_game("veldt:kuhn", 500, seed=1), RandomOpponents(1))
    learning.reset()
    rewards = []
    for _ in range(40):
        _, reward, terminated, _, _ = learning.step(np.ones(500, dtype=int))
        rewards.append(reward[terminated])
    rewards = np.concatenate(rewards)
    betting = np.tile([0.0, 1.0], (12, 1))
    exact = 0.0
    for seat, sign in ((0, 1.0), (1, -1.0)):
        mine = (tree.players == seat)[:, None]
        exact += 0.5 * sign * expected_value(tree, np.where(mine, betting, tree.uniform()))
    assert abs(rewards.mean() - exact) < 4 * rewards.std() / len(rewards) ** 0.5


def test_returns_in_seat_columns_are_the_exact_action_values():
    """Uniform play in Kuhn: the mean return after betting minus that after passing, in every
    information state of both players, is what the exact values of two deviations say."""
    tree, random = information_tree("veldt:kuhn"), np.random.default_rng(0)
    numbers = {bytes(seen): state for state, seen in enumerate(tree.observations)}
    columns = SeatColumns(make_game("veldt:kuhn", 1000, same_step_reset=True))
    seen, info = columns.reset()
    episodes = [[] for _ in range(columns.num_envs)]
    returns = [([], []) for _ in range(tree.num_states)]
    for _ in range(60):
        mask = info["action_mask"]
        actions = np.where(mask, random.random(mask.shape), -1.0).argmax(axis=1)
        for column in np.flatnonzero(mask.all(axis=1)):
            episodes[column].append((numbers[bytes(seen[column])], actions[column]))
        seen, rewards, terminated, _, info = columns.step(actions)
        assert not rewards[~terminated].any()
        for column in np.flatnonzero(terminated):
            for state, action in episodes[column]:
                returns[state][action].append(rewards[column])
            episodes[column].clear()
    own = own_reach(tree, tree.uniform()[None])[0]
    for state, (passing, betting) in enumerate(returns):
        values = []
        for action in (0, 1):
            table = tree.uniform()
            table[state] = np.eye(2)[action]
            values.append(expected_value(tree, table) * (1 if tree.players[state] == 0 else -1))
        others = opponent_reach(tree, tree.uniform(), tree.players[state])
        reached = own[state] * others[tree.states == state].sum() / tree.states.shape[1]
        exact = (values[1] - values[0]) / reached
        error = (np.var(passing) / len(passing) + np.var(betting) / len(betting)) ** 0.5
        assert abs(np.mean(betting) - np.mean(passing) - exact) < 4.5 * error + 1e-5
