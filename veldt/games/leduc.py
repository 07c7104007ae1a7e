# SPDX-License-Identifier: Apache-2.0
"""Leduc poker: six cards (three ranks, two suits), one private card each and one public card.

Two rounds of betting, bets of 2 and then 4, at most two raises a round; a pair with the public card
wins, then the higher rank. 936 information states; the first player loses 0.0856 per game in
equilibrium.
"""

from __future__ import annotations

import itertools

import numpy as np

from veldt.games.native import NativeGame, game_spec, one_hot, zero_sum

FOLD, CALL, RAISE = range(3)
NUM_CARDS, MOST_RAISES, BETS = 6, 2, np.array([2, 4])
_DEALS = np.array(list(itertools.permutations(range(NUM_CARDS), 3)))
_MOST_MOVES = 4  # in a round: call, raise, raise, call


def _strength(private: np.ndarray, public: np.ndarray) -> np.ndarray:
    """Larger wins; the two cards of a rank are as strong."""
    ranks = private // 2
    return np.where(ranks == public // 2, NUM_CARDS + ranks, ranks)


class LeducPoker(NativeGame):
    """Observation as OpenSpiel's: player (2), own card (6), public card (6, zeros before the second
    round), calls and raises of each round (2 x 4 x 2). Folding is legal only against a raise."""

    state_names = ("cards", "moves", "num_moves", "round", "paid", "raises")
    num_deals = len(_DEALS)

    def __init__(self, num_games: int, seed: int = 0, same_step_reset: bool = False) -> None:
        spec = game_spec("veldt:leduc", 30, 3, same_step_reset=same_step_reset)
        super().__init__(spec, num_games, seed)
        self.cards = np.zeros((num_games, 3), dtype=np.int64)
        self.moves = np.full((num_games, 2, _MOST_MOVES), -1)
        self.num_moves = np.zeros(num_games, dtype=np.int64)
        self.round = np.zeros(num_games, dtype=np.int64)
        self.paid = np.ones((num_games, 2), dtype=np.int64)
        self.raises = np.zeros(num_games, dtype=np.int64)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _DEALS[deals]
        self.moves[games] = -1
        self.paid[games] = 1
        for counter in (self.num_moves, self.round, self.raises):
            counter[games] = 0

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mover, count, round_ = self.turns[games], self.num_moves[games], self.round[games]
        self.moves[games, round_, count] = actions - CALL  # a fold ends the game and shows as none
        self.num_moves[games] = count + 1
        self.turns[games] = 1 - mover

        raised, called, folded = actions == RAISE, actions == CALL, actions == FOLD
        stake = self.paid[games].max(axis=1) + np.where(raised, BETS[round_], 0)
        self.paid[games, mover] = np.where(folded, self.paid[games, mover], stake)
        self.raises[games] += raised

        round_over = called & (count > 0)
        showdown = round_over & (round_ == 1)
        self._next_round(games[round_over & (round_ == 0)])
        return (
            zero_sum(self._first_wins(games, folded, showdown)),
            folded | showdown,
            np.zeros(len(games), bool),
        )

    def _next_round(self, games: np.ndarray) -> None:
        self.round[games] = 1
        for counter in (self.num_moves, self.raises, self.turns):
            counter[games] = 0

    def _first_wins(
        self, games: np.ndarray, folded: np.ndarray, showdown: np.ndarray
    ) -> np.ndarray:
        """What the first player gets: the other's stake, or minus its own."""
        cards, paid = self.cards[games], self.paid[games]
        strength = _strength(cards[:, :2], cards[:, 2:])
        shown = np.sign(strength[:, 0] - strength[:, 1]) * paid[:, 0]
        # The turn has passed on: it is the winner's when the other has folded.
        left = np.where(self.turns[games] == 0, paid[:, 1], -paid[:, 0])
        return np.where(folded, left, np.where(showdown, shown, 0))

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        private = one_hot(self.cards[games, players], NUM_CARDS)
        public = one_hot(np.where(self.round[games] == 1, self.cards[games, 2], -1), NUM_CARDS)
        moves = one_hot(self.moves[games], 2).reshape(len(games), -1)
        return np.concatenate([one_hot(players, 2), private, public, moves], axis=1)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        allowed = np.ones((len(games), 3), dtype=bool)
        allowed[:, FOLD] = self.paid[games, players] < self.paid[games, 1 - players]
        allowed[:, RAISE] = self.raises[games] < MOST_RAISES
        return allowed
