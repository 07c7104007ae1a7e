# SPDX-License-Identifier: Apache-2.0
"""Connect Four looked ahead in NumPy: every line of a given length, many positions at once.

Worths are those of alpha_beta_kernels.py, which cuts what cannot matter and is compiled.
"""

from __future__ import annotations

import numpy as np

from veldt.games.connect_four import COLUMNS, HEIGHT, ROWS, has_four, windows

WIN = 10_000
NO_MOVE = -4 * WIN
_COLUMN = (1 << HEIGHT) - 1


WORTH = np.array([0, 1, 4, 16, 0])
"""Of a place for four with so many stones of one side and none of the other."""
_MASKS = (np.int64(1) << windows()).sum(axis=1)
_WORTHS = np.zeros((5, 5), np.int64)
_WORTHS[:, 0] += WORTH
_WORTHS[0, :] -= WORTH


def full_width_moves(
    own: np.ndarray, other: np.ndarray, depth: int, draws: np.ndarray
) -> np.ndarray:
    """int64 [N]: the best columns; `draws` [N] in [0, 1) decide between equally good ones."""
    worths = _worths_of_moves(own, other, depth)
    best = worths == worths.max(axis=1, keepdims=True)
    chosen = (draws * best.sum(axis=1)).astype(np.int64)
    found: np.ndarray = (best & (best.cumsum(axis=1) == chosen[:, None] + 1)).argmax(axis=1)
    return found


def _worths_of_moves(own: np.ndarray, other: np.ndarray, depth: int) -> np.ndarray:
    """int64 [N, 7]: what each column is worth for who moves; NO_MOVE where it is full."""
    columns = np.arange(COLUMNS) * HEIGHT
    stones = ((own | other)[:, None] >> columns) & _COLUMN
    free = stones >> (ROWS - 1) == 0
    placed = own[:, None] | ((stones + 1) << columns)
    wins = free & has_four(placed.ravel()).reshape(free.shape)
    worths = np.full(free.shape, NO_MOVE)
    worths[wins] = WIN + depth
    going_on = free & ~wins
    movers = np.broadcast_to(other[:, None], free.shape)[going_on]
    worths[going_on] = -_worth(movers, placed[going_on], depth - 1)
    return worths


def _worth(own: np.ndarray, other: np.ndarray, depth: int) -> np.ndarray:
    if depth == 0:
        return evaluated(own, other)
    best = _worths_of_moves(own, other, depth).max(axis=1, initial=NO_MOVE)
    return np.where(best == NO_MOVE, 0, best)  # no move left: a draw


def evaluated(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Places for four that only one side has stones in: 1, 4 or 16 for one, two or three stones."""
    worth = np.zeros(len(own), np.int64)
    for mask in _MASKS:
        worth += _WORTHS[np.bitwise_count(own & mask), np.bitwise_count(other & mask)]
    return worth
