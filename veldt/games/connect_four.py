# SPDX-License-Identifier: Apache-2.0
"""Connect Four on seven columns and six rows, as bitboards.

The stones of a player are the bits of one integer: bit 7 * column + row, row 0 at the bottom. The
seventh bit of each column is never set, so that shifted boards do not run into the next column.
"""

from __future__ import annotations

import numpy as np

from veldt.games.native import NativeGame, game_spec, zero_sum

COLUMNS, ROWS, HEIGHT = 7, 6, 7
_ROWS, _COLUMNS = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
_BITS = (HEIGHT * _COLUMNS + _ROWS).astype(np.int64)
"""Bit of each cell, row by row from the bottom."""
_TOPS = np.array([HEIGHT * column + ROWS - 1 for column in range(COLUMNS)])


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


class ConnectFour(NativeGame):
    """Action: the column. Observation (3 x 42): empty cells, own stones, the other's."""

    state_names = ("stones", "num_moves")

    def __init__(self, num_games: int, seed: int = 0, same_step_reset: bool = False) -> None:
        size = 3 * ROWS * COLUMNS
        spec = game_spec("veldt:connect_four", size, COLUMNS, same_step_reset=same_step_reset)
        super().__init__(spec, num_games, seed)
        self.stones = np.zeros((num_games, 2), dtype=np.int64)
        self.num_moves = np.zeros(num_games, dtype=np.int64)

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.stones[games] = 0
        self.num_moves[games] = 0

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mover = self.turns[games]
        taken = self.stones[games, 0] | self.stones[games, 1]
        column = (taken >> (HEIGHT * actions)) & ((1 << HEIGHT) - 1)
        # Stones fill a column from below: adding 1 to its bits gives the bit of the next free cell.
        self.stones[games, mover] |= (column + 1) << (HEIGHT * actions)
        self.num_moves[games] += 1
        self.turns[games] = 1 - mover
        won = has_four(self.stones[games, mover])
        over = won | (self.num_moves[games] == ROWS * COLUMNS)
        first = np.where(won, np.where(mover == 0, 1, -1), 0)
        return zero_sum(first), over, np.zeros(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        own = cells_of(self.stones[games, players])
        other = cells_of(self.stones[games, 1 - players])
        return np.concatenate([~(own | other), own, other], axis=1, dtype=np.float32)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        taken = self.stones[games, 0] | self.stones[games, 1]
        return (taken[:, None] >> _TOPS) & 1 == 0
