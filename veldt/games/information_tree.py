# SPDX-License-Identifier: Apache-2.0
"""The whole tree of a small card game as arrays, found by playing the vectorised game itself.

Moves are public and chance deals before the first one, so every deal has the same tree of moves. A
node is a sequence of moves; its arrays have one entry per deal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games.interface import actions_of
from veldt.games.native import NativeGame
from veldt.games.registry import GAMES

PolicyFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(observations [I, O], legal [I, A]) -> probabilities [I, A]."""
CHILDLESS = -1


@dataclass(frozen=True)
class InformationTree:
    """N nodes (parents first), D deals of equal chance, I information states, A actions."""

    players: np.ndarray
    """int [I]: whose information state it is."""
    observations: np.ndarray
    legal: np.ndarray
    """float32 [I, O] and bool [I, A]: what a policy is asked about."""
    movers: np.ndarray
    """int [N]: who moves; -1 at an end."""
    children: np.ndarray
    """int [N, A]: the node after each action; CHILDLESS where it is illegal or an end."""
    states: np.ndarray
    """int [N, D]: the mover's information state under each deal; -1 at an end."""
    payoffs: np.ndarray
    """float64 [N, D]: what player 0 gets at an end; 0 elsewhere. Player 1 gets the opposite."""
    last_states: np.ndarray
    last_actions: np.ndarray
    """int [I]: the same player's decision before this one, and its action; -1 if there is none.
    Perfect recall makes it unique. Earlier states have smaller numbers."""

    @property
    def num_states(self) -> int:
        return len(self.players)

    def uniform(self) -> np.ndarray:
        """The table [I, A] that chooses among legal actions alike."""
        return self.legal / self.legal.sum(axis=1, keepdims=True)

    def table(self, policy: PolicyFunction | np.ndarray) -> np.ndarray:
        """Probabilities [I, A] of a policy, by one call for all states; checked and normalised."""
        if callable(policy):
            policy = policy(self.observations, self.legal)
        table = np.asarray(policy, dtype=np.float64)
        if table.shape != self.legal.shape:
            raise ValueError(f"the policy gave {table.shape}; it must give {self.legal.shape}")
        if not np.isfinite(table).all() or (table < 0).any():
            raise ValueError("a policy gave probabilities that are negative or not finite")
        if (table[~self.legal] > 1e-6).any():
            raise ValueError("a policy gave illegal actions a probability")
        table = np.where(self.legal, table, 0.0)
        sums = table.sum(axis=1, keepdims=True)
        if (np.abs(sums - 1.0) > 1e-3).any():
            raise ValueError("the probabilities of a policy do not add up to 1")
        return table / sums


@functools.cache
def information_tree(name: str) -> InformationTree:
    """The tree of a registered card game; made once, in milliseconds."""
    if name not in ("veldt:kuhn", "veldt:leduc"):
        raise ConfigurationError(
            f"'{name}' has no exact NashConv; use veldt:kuhn or veldt:leduc for that"
        )
    game = GAMES[name](GAMES[name].num_deals)  # type: ignore[attr-defined]
    walk = _Walk(game)
    game.deal(np.arange(game.num_games))
    nowhere = np.full(game.num_games, -1)
    walk.visit(np.zeros(game.num_games), {0: (nowhere, -1), 1: (nowhere, -1)})
    return walk.tree()


class _Walk:
    """Depth-first through all sequences of moves, for all deals at once."""

    def __init__(self, game: NativeGame) -> None:
        self._game = game
        self._nodes: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        self._states: list[tuple[int, np.ndarray, np.ndarray, int, int]] = []

    def visit(self, payoff: np.ndarray, last: dict[int, tuple[np.ndarray, int]]) -> int:
        """Add the game's present node and all below it; `last` has each player's last states [D]
        and action. Returns the node's number."""
        game, number = self._game, len(self._nodes)
        children = np.full(game.spec.action_mask_size, CHILDLESS)
        if game.waiting_for_reset.all():
            self._nodes.append((-1, children, np.full(game.num_games, -1), payoff))
            return number
        mover = int(game.turns[0])
        assert (game.turns == mover).all(), "moves must not depend on the deal"
        assert not game.waiting_for_reset.any(), "ends must not depend on the deal"
        states = self._number_states(mover, *last[mover])
        self._nodes.append((mover, children, states, np.zeros(game.num_games)))
        here = game.state()
        for action in np.flatnonzero(game.legal(game.turns)[0]):
            game.load_state(here)
            moves = actions_of(game.turns, np.full(game.num_games, action), 2)
            reward = game.step(moves).rewards[:, 0].astype(np.float64)
            children[action] = self.visit(reward, {**last, mover: (states, int(action))})
        return number

    def _number_states(self, mover: int, last_states: np.ndarray, last_action: int) -> np.ndarray:
        """Deals that look alike to the mover share a state."""
        seen = self._game.observe(self._game.turns)["observation"]
        allowed = self._game.legal(self._game.turns)
        _, first, inverse = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        begin = len(self._states)
        for deal in first:
            entry = (mover, seen[deal], allowed[deal], int(last_states[deal]), last_action)
            self._states.append(entry)
        return begin + inverse.reshape(-1)

    def tree(self) -> InformationTree:
        movers, children, states, payoffs = zip(*self._nodes, strict=True)
        players, seen, legal, last_states, last_actions = zip(*self._states, strict=True)
        return InformationTree(
            players=np.array(players),
            observations=np.array(seen),
            legal=np.array(legal),
            movers=np.array(movers),
            children=np.array(children),
            states=np.array(states),
            payoffs=np.array(payoffs),
            last_states=np.array(last_states),
            last_actions=np.array(last_actions),
        )
