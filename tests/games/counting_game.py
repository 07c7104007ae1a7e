# SPDX-License-Identifier: Apache-2.0
"""A game that counts, so that every row of every player's column can be checked by hand.

The observation names the row: [game, episode, moves so far, player]. A reward names who received
it and in which move; rewards add up without carrying, so that a wrong sum shows.
"""

from __future__ import annotations

import numpy as np

from veldt.games.native import NativeGame, game_spec

DEFAULT_LENGTHS = (5, 2, 7, 1)
DEFAULT_ORDER = (0, 1, 1, 2)
"""Who moves: player 1 has two moves on end, and player 0 may end a game before 2 has moved."""


class CountingGame(NativeGame):
    """Move number t (1, 2, ...) pays player p the reward 1000 * p + t. Episode e of game b lasts
    lengths[(b + e) % len(lengths)] moves; even episodes terminate, odd ones are truncated. Action a
    is forbidden for player p after t moves if (a + t + p) % 3 is 0."""

    state_names = ("num_moves",)
    num_actions = 4

    def __init__(
        self,
        num_games: int,
        seed: int = 0,
        same_step_reset: bool = False,
        order: tuple[int, ...] = DEFAULT_ORDER,
        lengths: tuple[int, ...] = DEFAULT_LENGTHS,
        simultaneous: bool = False,
    ) -> None:
        spec = game_spec(
            "veldt:counting_game",
            4,
            self.num_actions,
            num_players=max(order) + 1,
            simultaneous=simultaneous,
            same_step_reset=same_step_reset,
        )
        super().__init__(spec, num_games, seed)
        self.num_moves = np.zeros(num_games, dtype=np.int64)
        self._order, self._lengths = np.array(order), np.array(lengths)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.num_moves[games] = 0
        self.turns[games] = self._order[0]

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.num_moves[games] += 1
        moves = self.num_moves[games]
        self.turns[games] = self._order[moves % len(self._order)]
        over = moves == self._lengths[(games + self.episodes[games]) % len(self._lengths)]
        even = self.episodes[games] % 2 == 0
        rewards = 1000 * np.arange(self.spec.num_players) + moves[:, None]
        return rewards, over & even, over & ~even

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        columns = (games, self.episodes[games], self.num_moves[games], players)
        return np.stack(columns, axis=1).astype(np.float32)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        actions = np.arange(self.num_actions)
        return (actions + (self.num_moves[games] + players)[:, None]) % 3 != 0
