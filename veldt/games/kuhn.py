# SPDX-License-Identifier: Apache-2.0
"""Kuhn poker: three cards, one each, one bet. The smallest game with bluffing.

12 information states; the first player loses 1/18 per game in equilibrium.
"""

from __future__ import annotations

import itertools

import numpy as np

from veldt.games.native import NativeGame, game_spec, one_hot, zero_sum

PASS, BET = range(2)
_DEALS = np.array(list(itertools.permutations(range(3), 2)))
_MOST_MOVES = 3


class KuhnPoker(NativeGame):
    """Observation as OpenSpiel's: player (2), own card (3), the moves so far (3 x 2)."""

    state_names = ("cards", "moves", "num_moves")
    num_deals = len(_DEALS)

    def __init__(self, num_games: int, seed: int = 0, same_step_reset: bool = False) -> None:
        super().__init__(
            game_spec("veldt:kuhn", 11, 2, same_step_reset=same_step_reset), num_games, seed
        )
        self.cards = np.zeros((num_games, 2), dtype=np.int64)
        self.moves = np.full((num_games, _MOST_MOVES), -1)
        self.num_moves = np.zeros(num_games, dtype=np.int64)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _DEALS[deals]
        self.moves[games] = -1
        self.num_moves[games] = 0

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mover, count = self.turns[games], self.num_moves[games]
        facing_bet = (count > 0) & (self.moves[games, count - 1] == BET)
        self.moves[games, count] = actions
        self.num_moves[games] = count + 1
        self.turns[games] = 1 - mover

        folded = facing_bet & (actions == PASS)
        called = facing_bet & (actions == BET)
        checked = (count == 1) & ~facing_bet & (actions == PASS)
        sign = np.where(self.cards[games, 0] > self.cards[games, 1], 1, -1)
        sign = np.where(folded, np.where(mover == 1, 1, -1), sign)
        first = sign * np.where(called, 2, 1) * (folded | called | checked)
        return zero_sum(first), folded | called | checked, np.zeros(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        card = one_hot(self.cards[games, players], 3)
        moves = one_hot(self.moves[games], 2).reshape(len(games), -1)
        return np.concatenate([one_hot(players, 2), card, moves], axis=1)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return np.ones((len(games), 2), dtype=bool)
