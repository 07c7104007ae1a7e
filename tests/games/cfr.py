# SPDX-License-Identifier: Apache-2.0
"""CFR+ (Tammelin 2014) over an information tree: equilibria to check the exact measures by."""

from __future__ import annotations

import numpy as np

from veldt.games.solvers import opponent_reach, own_reach


def expected_value(tree, table):
    """What player 0 gets per game when both follow `table`."""
    values = tree.payoffs.copy()
    for node in reversed(range(len(tree.movers))):
        if tree.movers[node] >= 0:
            legal = np.flatnonzero(tree.children[node] >= 0)
            chances = table[tree.states[node]][:, legal]
            values[node] = (chances * values[tree.children[node, legal]].T).sum(axis=1)
    return float(values[0].mean())


def cfr_plus(tree, num_iterations):
    """The average table after alternating updates, iteration t weighing t."""
    regrets = np.zeros(tree.legal.shape)
    total = np.zeros(tree.legal.shape)
    for iteration in range(1, num_iterations + 1):
        for player in (0, 1):
            table = _matched(tree, regrets)
            gains = _counterfactual_gains(tree, table, player)
            regrets = np.maximum(regrets + gains, 0.0)
            mine = (tree.players == player)[:, None]
            new = _matched(tree, regrets)
            total += mine * iteration * own_reach(tree, new[None])[0][:, None] * new
    sums = total.sum(axis=1, keepdims=True)
    return np.where(sums > 0, total / np.where(sums > 0, sums, 1.0), tree.uniform())


def _matched(tree, regrets):
    sums = regrets.sum(axis=1, keepdims=True)
    return np.where(sums > 0, regrets / np.where(sums > 0, sums, 1.0), tree.uniform())


def _counterfactual_gains(tree, table, player):
    reach = opponent_reach(tree, table, player)
    values = (1.0 if player == 0 else -1.0) * tree.payoffs
    gains = np.zeros(tree.legal.shape)
    for node in range(len(tree.movers) - 1, -1, -1):
        if tree.movers[node] < 0:
            continue
        legal = np.flatnonzero(tree.children[node] >= 0)
        states = tree.states[node]
        below = values[tree.children[node, legal]]
        values[node] = (table[states][:, legal] * below.T).sum(axis=1)
        if tree.movers[node] == player:
            for place, action in enumerate(legal):
                gain = reach[node] * (below[place] - values[node])
                np.add.at(gains[:, action], states, gain)
    return gains
