# SPDX-License-Identifier: Apache-2.0
"""Rock-paper-scissors, Kuhn and Leduc poker: small games whose equilibria are known.

Rock-paper-scissors: only a third each cannot be exploited.
Kuhn: three cards, one each, one bet; 12 information states; in equilibrium the first player loses
1/18 per game. Leduc: six cards (three ranks, two suits), one private card each and a public one,
two rounds with bets of 2 and then 4, at most two raises a round; a pair with the public card wins,
then the higher rank; 936 information states; in equilibrium the first player loses 0.0856.
Observations of both are those of OpenSpiel.
"""

from __future__ import annotations

import itertools

import numpy as np

from veldt.games.interface import NativeGame, zero_sum

PASS, BET = range(2)
_KUHN_DEALS = np.array(list(itertools.permutations(range(3), 2)))
_MOST_KUHN_MOVES = 3

FOLD, CALL, RAISE = range(3)
_NUM_CARDS, _MOST_RAISES, _BETS = 6, 2, np.array([2, 4])
_LEDUC_DEALS = np.array(list(itertools.permutations(range(_NUM_CARDS), 3)))
_MOST_ROUND_MOVES = 4  # call, raise, raise, call
_RANKS = "JQK"
_HOT = {size: np.eye(size + 1, size, dtype=np.float32) for size in (2, 3, 6)}


def one_hot(values: np.ndarray, size: int) -> np.ndarray:
    """float32 [..., size]; all zeros for -1."""
    return _HOT[size][values]  # -1 is the last row, which has no one


class RockPaperScissors(NativeGame):
    """One simultaneous move. Reward 1, 0 or -1; the observation is a single 1."""

    id, observation_size, num_actions = "veldt:rock_paper_scissors", 1, 3
    simultaneous = True
    action_names = ("rock", "paper", "scissors")

    def _allocate(self) -> None:
        pass

    def drawn(self, player: int) -> str:
        return "both choose at once"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        pass

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Each beats the one before it, in a circle: 1 is a win, 2 is a defeat.
        ahead = (actions[:, 0] - actions[:, 1]) % 3
        return zero_sum(np.where(ahead == 2, -1, ahead)), np.ones(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return np.ones((len(games), 1), dtype=np.float32)


class KuhnPoker(NativeGame):
    """Observation: player (2), own card (3), the moves so far (3 x 2)."""

    id, observation_size, num_actions = "veldt:kuhn", 11, 2
    state_names = ("cards", "moves", "num_moves")
    action_names = ("pass", "bet")
    num_deals = len(_KUHN_DEALS)

    def _allocate(self) -> None:
        self.cards = np.zeros((self.num_games, 2), dtype=np.int64)
        self.moves = np.full((self.num_games, _MOST_KUHN_MOVES), -1)
        self.num_moves = np.zeros(self.num_games, dtype=np.int64)

    def drawn(self, player: int) -> str:
        moves = [self.action_names[move] for move in self.moves[0] if move >= 0]
        return f"your card: {_RANKS[self.cards[0, player]]}; moves: {', '.join(moves) or 'none'}"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _KUHN_DEALS[deals]
        self.moves[games] = -1
        self.num_moves[games] = 0

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
        return zero_sum(first), folded | called | checked

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        card = one_hot(self.cards[games, players], 3)
        moves = one_hot(self.moves[games], 2).reshape(len(games), -1)
        return np.concatenate([one_hot(players, 2), card, moves], axis=1)


def _strength(private: np.ndarray, public: np.ndarray) -> np.ndarray:
    """The larger one wins; both cards of a rank are equal."""
    ranks = private // 2
    return np.where(ranks == public // 2, _NUM_CARDS + ranks, ranks)


class LeducPoker(NativeGame):
    """Observation: player (2), own card (6), public card (6, zeros before the second
    round), calls and raises of each round (2 x 4 x 2). Folding is legal only against a raise."""

    id, observation_size, num_actions = "veldt:leduc", 30, 3
    state_names = ("cards", "moves", "num_moves", "round", "paid", "raises")
    action_names = ("fold", "call", "raise")
    num_deals = len(_LEDUC_DEALS)

    def _allocate(self) -> None:
        self.cards = np.zeros((self.num_games, 3), dtype=np.int64)
        self.moves = np.full((self.num_games, 2, _MOST_ROUND_MOVES), -1)
        self.paid = np.ones((self.num_games, 2), dtype=np.int64)
        self.num_moves, self.round, self.raises = np.zeros((3, self.num_games), np.int64)

    def drawn(self, player: int) -> str:
        rounds = [
            ", ".join(self.action_names[CALL + move] for move in moves if move >= 0) or "none"
            for moves in self.moves[0]
        ]
        own = _RANKS[self.cards[0, player] // 2]
        public = _RANKS[self.cards[0, 2] // 2] if self.round[0] else "not shown yet"
        paid = self.paid[0]
        return f"your card: {own}; public card: {public}; paid: {paid}; moves: {'; '.join(rounds)}"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _LEDUC_DEALS[deals]
        self.moves[games] = -1
        self.paid[games] = 1
        for counter in (self.num_moves, self.round, self.raises):
            counter[games] = 0

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover, count, round_ = self.turns[games], self.num_moves[games], self.round[games]
        self.moves[games, round_, count] = actions - CALL  # a fold ends the game; -1 is no move
        self.num_moves[games] = count + 1
        self.turns[games] = 1 - mover

        raised, called, folded = actions == RAISE, actions == CALL, actions == FOLD
        stake = self.paid[games].max(axis=1) + np.where(raised, _BETS[round_], 0)
        self.paid[games, mover] = np.where(folded, self.paid[games, mover], stake)
        self.raises[games] += raised

        round_over = called & (count > 0)
        showdown = round_over & (round_ == 1)
        self._next_round(games[round_over & (round_ == 0)])
        return zero_sum(self._first_wins(games, folded, showdown)), folded | showdown

    def _next_round(self, games: np.ndarray) -> None:
        self.round[games] = 1
        for counter in (self.num_moves, self.raises, self.turns):
            counter[games] = 0

    def _first_wins(
        self, games: np.ndarray, folded: np.ndarray, showdown: np.ndarray
    ) -> np.ndarray:
        """The first player's reward: the other's stake, or minus its own."""
        cards, paid = self.cards[games], self.paid[games]
        strength = _strength(cards[:, :2], cards[:, 2:])
        shown = np.sign(strength[:, 0] - strength[:, 1]) * paid[:, 0]
        # The turn has passed: it belongs to the winner when the other has folded.
        left = np.where(self.turns[games] == 0, paid[:, 1], -paid[:, 0])
        return np.where(folded, left, np.where(showdown, shown, 0))

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        private = one_hot(self.cards[games, players], _NUM_CARDS)
        public = one_hot(np.where(self.round[games] == 1, self.cards[games, 2], -1), _NUM_CARDS)
        moves = one_hot(self.moves[games], 2).reshape(len(games), -1)
        return np.concatenate([one_hot(players, 2), private, public, moves], axis=1)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        allowed = super()._allowed(games, players)
        allowed[:, FOLD] = self.paid[games, players] < self.paid[games, 1 - players]
        allowed[:, RAISE] = self.raises[games] < _MOST_RAISES
        return allowed
