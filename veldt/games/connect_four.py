# SPDX-License-Identifier: Apache-2.0
"""Connect Four on seven columns and six rows, as bitboards.

The stones of a player are the bits of one integer: bit 7 * column + row, row 0 at the bottom. The
seventh bit of each column is never set, so that shifted boards do not run into the next column.
"""

from __future__ import annotations

import numpy as np

from veldt.games.native import BoardGame, zero_sum

COLUMNS, ROWS, HEIGHT = 7, 6, 7
CELLS = COLUMNS * ROWS
_ROWS, _COLUMNS = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
_BITS = (HEIGHT * _COLUMNS + _ROWS).astype(np.int64)
"""Bit of each cell, row by row from the bottom."""
_TOPS = np.array([HEIGHT * column + ROWS - 1 for column in range(COLUMNS)])


def windows() -> np.ndarray:
    """int64 [69, 4]: the bits of all places for four in a row."""
    found = []
    for column in range(COLUMNS):
        for row in range(ROWS):
            for right, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
                if column + 3 * right < COLUMNS and 0 <= row + 3 * up < ROWS:
                    bits = [HEIGHT * (column + right * i) + row + up * i for i in range(4)]
                    found.append(bits)
    return np.array(found)


def cell_windows() -> np.ndarray:
    """bool [42, 69]: which cells, row by row from the bottom, each of them has."""
    return (_BITS[:, None, None] == windows()).any(axis=2)


def has_four(stones: np.ndarray) -> np.ndarray:
    """bool [N]: whether the bitboards hold four in a row."""
    found = np.zeros(len(stones), dtype=bool)
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> shift)
        found |= (pairs & (pairs >> (2 * shift))) != 0
    return found


def cells_of(stones: np.ndarray) -> np.ndarray:
    """bool [N, 42]: the cells of bitboards, row by row from the bottom."""
    return (stones[:, None] >> _BITS) & 1 == 1


def boards_of(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 [N], twice: the own and the other's bitboards of observations [N, 126]."""
    cells = seen.reshape(-1, 3, ROWS * COLUMNS) > 0
    own, other = (cells[:, 1:] @ (np.int64(1) << _BITS)).T
    return own, other


class ConnectFour(BoardGame):
    """Action: the column. Observation (3 x 42): empty cells, own stones, the other's. The first
    `opening_moves` of each game are chance's, all as likely."""

    id, observation_size, num_actions = "veldt:connect_four", 3 * ROWS * COLUMNS, COLUMNS
    most_opening_moves = ROWS - 1  # fewer than a column holds, and than it takes to win
    state_names = ("stones", "num_moves")

    def _set_up(self) -> None:
        self.num_deals = COLUMNS**self.opening_moves
        self.stones = np.zeros((self.num_games, 2), dtype=np.int64)
        self.num_moves = np.zeros(self.num_games, dtype=np.int64)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.stones[games] = 0
        self.num_moves[games] = 0
        for _ in range(self.opening_moves):
            self._place(games, deals % COLUMNS)
            deals = deals // COLUMNS

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mover = self._place(games, actions)
        won = has_four(self.stones[games, mover])
        over = won | (self.num_moves[games] == ROWS * COLUMNS)
        first = np.where(won, np.where(mover == 0, 1, -1), 0)
        return zero_sum(first), over, np.zeros(len(games), bool)

    def _place(self, games: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Put down the next stones; who did."""
        mover = self.turns[games]
        taken = self.stones[games, 0] | self.stones[games, 1]
        stones = (taken >> (HEIGHT * columns)) & ((1 << HEIGHT) - 1)
        # Stones fill a column from below: adding 1 to its bits gives the bit of the next free cell.
        self.stones[games, mover] |= (stones + 1) << (HEIGHT * columns)
        self.num_moves[games] += 1
        self.turns[games] = 1 - mover
        return mover

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        own = cells_of(self.stones[games, players])
        other = cells_of(self.stones[games, 1 - players])
        return np.concatenate([~(own | other), own, other], axis=1, dtype=np.float32)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        taken = self.stones[games, 0] | self.stones[games, 1]
        return (taken[:, None] >> _TOPS) & 1 == 0
