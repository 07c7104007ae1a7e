# SPDX-License-Identifier: Apache-2.0
"""Players for tests: random ones, scripted ones for a league's pool, and what a table earns."""

import numpy as np


class RandomOpponents:
    """Draws legal actions uniformly; for games with discrete actions."""

    def __init__(self, seed=0):
        self._random = np.random.default_rng(seed)

    def act(self, turns):
        legal = turns.legal
        return np.where(legal, self._random.random(legal.shape), -1.0).argmax(axis=1)

    def game_over(self, games, seats, returns):
        pass


def random_script(seen, legal, random):
    return legal / legal.sum(axis=1, keepdims=True)


def expected_value(tree, table):
    """What player 0 gets per game when both follow `table`."""
    values = tree.payoffs.copy()
    for node in reversed(range(len(tree.movers))):
        if tree.movers[node] >= 0:
            legal = np.flatnonzero(tree.children[node] >= 0)
            chances = table[tree.states[node]][:, legal]
            values[node] = (chances * values[tree.children[node, legal]].T).sum(axis=1)
    return float(values[0].mean())
