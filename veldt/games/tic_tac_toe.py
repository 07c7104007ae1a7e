# SPDX-License-Identifier: Apache-2.0
"""Tic-tac-toe. Perfect play by both ends in a draw."""

from __future__ import annotations

import math

import numpy as np

from veldt.games.native import BoardGame, zero_sum

CELLS = 9
LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)
EMPTY = -1


def has_line(stones: np.ndarray) -> np.ndarray:
    """bool [N]: whether `stones`, bool [N, 9], hold three in a row."""
    return np.any(np.all(stones[:, LINES], axis=2), axis=1)


def planes(cells: np.ndarray, players: np.ndarray) -> np.ndarray:
    """float32 [N, 27]: empty cells, own stones, the other's. OpenSpiel shows crosses and noughts
    instead; seen from the mover, one policy can learn both seats."""
    own, other = players[:, None], 1 - players[:, None]
    return np.concatenate([cells == EMPTY, cells == own, cells == other], axis=1, dtype=np.float32)


class TicTacToe(BoardGame):
    """Cells 0 to 8, row by row. 1 for three in a row, -1 for the other, 0 for a draw. Chance plays
    the first moves of a game, none to `opening_moves` of them, each number as likely."""

    id, observation_size, num_actions = "veldt:tic_tac_toe", 3 * CELLS, CELLS
    most_opening_moves = 4  # one more could win
    state_names = ("cells",)

    def _set_up(self) -> None:
        self.num_deals = (self.opening_moves + 1) * math.perm(CELLS, self.opening_moves)
        self.cells = np.full((self.num_games, CELLS), EMPTY)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cells[games] = EMPTY
        count, deals = deals % (self.opening_moves + 1), deals // (self.opening_moves + 1)
        for move in range(self.opening_moves):
            left = CELLS - move
            playing = count > move
            self._open(games[playing], (deals % left)[playing], move % 2)
            deals = deals // left
        self.turns[games] = count % 2

    def _open(self, games: np.ndarray, choices: np.ndarray, mover: int) -> None:
        """Put a stone on the empty cell that is `choices[n]`-th in game `games[n]`."""
        empty = self.cells[games] == EMPTY
        cells = np.argmax(np.cumsum(empty, axis=1) == choices[:, None] + 1, axis=1)
        self.cells[games, cells] = mover

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mover = self.turns[games]
        self.cells[games, actions] = mover
        self.turns[games] = 1 - mover
        cells = self.cells[games]
        won = has_line(cells == mover[:, None])
        over = won | (cells != EMPTY).all(axis=1)
        first = np.where(won, np.where(mover == 0, 1, -1), 0)
        return zero_sum(first), over, np.zeros(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return planes(self.cells[games], players)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return self.cells[games] == EMPTY
