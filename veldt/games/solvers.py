# SPDX-License-Identifier: Apache-2.0
"""Exact measures of strength for the small native games.

Kuhn and Leduc poker: best responses and NashConv over the whole game tree. NashConv(pi) is the sum
over players of what each could gain by a best response alone; it is 0 in equilibrium only, and
twice the exploitability. Tic-tac-toe: all lines of play against a policy. Rock-paper-scissors:
distance to the only equilibrium.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from veldt.games import GAMES
from veldt.games.interface import NativeGame, actions_of
from veldt.games.native_games import EMPTY, TicTacToe, has_line, planes

PolicyFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(observations [N, O], legal [N, A]) -> probabilities [N, A]."""
NO_CHILD = -1


@dataclass(frozen=True)
class InformationTree:
    """A card game's tree: N nodes (parents first), D deals, I information states, A actions.

    Moves are public and chance deals before the first one, so that every deal has the same tree of
    moves. A node is a sequence of moves; its arrays have one entry per deal."""

    players: np.ndarray
    """int [I]: whose information state it is."""
    observations: np.ndarray
    legal: np.ndarray
    """float32 [I, O] and bool [I, A]: a policy's input in each information state."""
    movers: np.ndarray
    """int [N]: who moves; -1 at an end."""
    children: np.ndarray
    """int [N, A]: the node after each action; NO_CHILD where it is illegal or an end."""
    states: np.ndarray
    """int [N, D]: the mover's information state under each deal; -1 at an end."""
    payoffs: np.ndarray
    """float64 [N, D]: player 0's reward at an end, 0 elsewhere. Player 1 gets the opposite."""
    last_states: np.ndarray
    last_actions: np.ndarray
    """int [I]: the same player's previous decision and its action; -1 if there is none. Unique
    because of perfect recall. Earlier states have smaller numbers."""

    def uniform(self) -> np.ndarray:
        """The table [I, A] of the policy that draws legal actions uniformly."""
        return self.legal / self.legal.sum(axis=1, keepdims=True)

    def table(self, policy: PolicyFunction) -> np.ndarray:
        """Probabilities [I, A] of a policy in all states, normalised over the legal actions."""
        chances = np.asarray(policy(self.observations, self.legal), dtype=np.float64)
        table = np.where(self.legal, chances, 0.0)
        return table / table.sum(axis=1, keepdims=True)


@functools.cache
def information_tree(name: str) -> InformationTree:
    """The tree of veldt:kuhn or veldt:leduc, built once by playing all sequences of moves."""
    game = GAMES[name](GAMES[name].num_deals)
    game.deal(np.arange(game.num_games))
    nodes: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
    states: list[tuple[int, np.ndarray, np.ndarray, int, int]] = []
    none = np.full(game.num_games, -1)

    def number_states(
        game: NativeGame, mover: int, last_states: np.ndarray, last_action: int
    ) -> np.ndarray:
        """The states [D] of this node: deals with equal observations of the mover share one."""
        seen, legal = game.observe(game.turns)["observation"], game.legal(game.turns)
        _, first, inverse = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        begin = len(states)
        for deal in first:
            last = (int(last_states[deal]), last_action)
            states.append((mover, seen[deal], legal[deal], *last))
        return begin + inverse.reshape(-1)

    def visit(game: NativeGame, payoff: np.ndarray, last: dict[int, tuple[np.ndarray, int]]) -> int:
        """Add a node and all below it; `last`: each player's last states and action."""
        number, children = len(nodes), np.full(game.num_actions, NO_CHILD)
        if game.over.all():
            nodes.append((-1, children, none, payoff))
            return number
        mover = int(game.turns[0])
        assert (game.turns == mover).all(), "moves must not depend on the deal"
        assert not game.over.any(), "ends must not depend on the deal"
        here = number_states(game, mover, *last[mover])
        nodes.append((mover, children, here, np.zeros(game.num_games)))
        for action in np.flatnonzero(game.legal(game.turns)[0]):
            after, moves = copy.deepcopy(game), np.full(game.num_games, action)
            reward = after.step(actions_of(game.turns, moves, 2)).rewards[:, 0].astype(np.float64)
            children[action] = visit(after, reward, {**last, mover: (here, int(action))})
        return number

    visit(game, np.zeros(game.num_games), {0: (none, -1), 1: (none, -1)})
    of_nodes, of_states = (
        [np.array(column) for column in zip(*rows, strict=True)] for rows in (nodes, states)
    )
    players, observations, legal, *last = of_states
    return InformationTree(players, observations, legal, *of_nodes, *last)


def best_response(
    tree: InformationTree, table: np.ndarray, player: int
) -> tuple[float, np.ndarray]:
    """The most `player` can get against `table`, and its action in each state, int [I].

    Actions are -1 in the other player's states."""
    reach = opponent_reach(tree, table, player)
    sign = 1.0 if player == 0 else -1.0
    values = sign * tree.payoffs
    actions = np.full(len(tree.players), -1)
    for node in range(len(tree.movers) - 1, -1, -1):
        if tree.movers[node] < 0:
            continue
        states = tree.states[node]
        legal = np.flatnonzero(tree.children[node] >= 0)
        below = values[tree.children[node, legal]]
        if tree.movers[node] != player:
            values[node] = (table[states][:, legal] * below.T).sum(axis=1)
            continue
        # One action for all deals of an information state, weighted by the chance of each deal.
        first, count = states.min(), np.ptp(states) + 1
        sums = [np.bincount(states - first, row, count) for row in below * reach[node]]
        best = np.argmax(sums, axis=0)
        actions[first : first + count] = legal[best]
        values[node] = below[best[states - first], np.arange(len(states))]
    return float(values[0].mean()), actions


def nash_conv(tree: InformationTree, table: np.ndarray) -> float:
    """What both players together could gain by best responses; 0 in an equilibrium."""
    # The values of the profile itself cancel out, because the game is zero-sum.
    return best_response(tree, table, 0)[0] + best_response(tree, table, 1)[0]


def mixture(tree: InformationTree, tables: Sequence[np.ndarray]) -> np.ndarray:
    """The table equivalent to drawing one of `tables` uniformly before each game.

    Averaged in sequence form: in a state, a policy counts as much as it is likely to have reached
    it by its own moves."""
    stacked = np.stack(tables)
    plans = 1.0 / len(stacked) * own_reach(tree, stacked)
    mixed = np.einsum("ki,kia->ia", plans, stacked)
    total = mixed.sum(axis=1, keepdims=True)
    # States that no policy reaches by itself do not matter.
    return np.where(total > 0, mixed / np.where(total > 0, total, 1.0), tree.uniform())


def own_reach(tree: InformationTree, tables: np.ndarray) -> np.ndarray:
    """[K, I]: chance that a player's own moves lead to each of its states, for tables [K, I, A]."""
    reach = np.ones(tables.shape[:2])
    for state in np.flatnonzero(tree.last_states >= 0):
        before, action = tree.last_states[state], tree.last_actions[state]
        reach[:, state] = reach[:, before] * tables[:, before, action]
    return reach


def opponent_reach(tree: InformationTree, table: np.ndarray, player: int) -> np.ndarray:
    """[N, D]: chance that all but `player` play to each node under each deal."""
    reach = np.ones(tree.payoffs.shape)
    for node in np.flatnonzero(tree.movers >= 0):
        for action in np.flatnonzero(tree.children[node] >= 0):
            child = tree.children[node, action]
            reach[child] = reach[node]
            if tree.movers[node] != player:
                reach[child] *= table[tree.states[node], action]
    return reach


def tic_tac_toe_losses(policy: PolicyFunction, seat: int) -> int:
    """Lines of play that a policy loses in one seat by its most likely legal actions.

    The opponent tries every move. Boards that many lines reach are evaluated once."""
    cells, counts = np.full((1, TicTacToe.num_actions), EMPTY), np.ones(1, dtype=np.int64)
    losses = 0
    for ply in range(TicTacToe.num_actions):
        mover, free = ply % 2, cells == EMPTY
        if mover == seat:
            seen = planes(cells, np.full(len(cells), mover))
            rows = np.arange(len(cells))
            actions = np.where(free, policy(seen, free), -np.inf).argmax(axis=1)
        else:
            rows, actions = np.nonzero(free)
        cells, counts = cells[rows], counts[rows]
        cells[np.arange(len(rows)), actions] = mover
        won = has_line(cells == mover, TicTacToe.lines)
        if mover != seat:
            losses += int(counts[won].sum())
        cells, inverse = np.unique(cells[~won], axis=0, return_inverse=True)
        counts = np.bincount(inverse.reshape(-1), counts[~won], len(cells)).astype(np.int64)
        if not len(cells):
            break
    return losses


def distance_to_equilibrium(strategies: np.ndarray) -> float:
    """Largest difference to a third each, of one strategy [3] or of several [K, 3] mixed alike."""
    mixed = np.atleast_2d(np.asarray(strategies, dtype=np.float64)).mean(axis=0)
    return float(np.abs(mixed - 1.0 / 3.0).max())
