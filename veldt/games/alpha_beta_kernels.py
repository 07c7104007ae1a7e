# SPDX-License-Identifier: Apache-2.0
"""Compiled alpha-beta search for Connect Four. Imported only when it is used, since numba loads
slowly. Boards are those of connect_four.py.
"""

from __future__ import annotations

import numba
import numpy as np

from veldt.games.connect_four import COLUMNS, HEIGHT, ROWS, windows
from veldt.games.full_width import WIN, WORTH

_ORDER = np.array([3, 2, 4, 1, 5, 0, 6])  # the middle first: it cuts most
_COLUMN = (1 << HEIGHT) - 1


_WINDOWS = windows()


@numba.njit(cache=True)
def _has_four(stones: int) -> bool:
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


@numba.njit(cache=True)
def _placed(taken: int, column: int) -> int:
    """The bit of the next stone in a column; 0 when it is full."""
    stones = (taken >> (HEIGHT * column)) & _COLUMN
    if stones >> (ROWS - 1):
        return 0
    return (stones + 1) << (HEIGHT * column)


@numba.njit(cache=True)
def evaluated(own: int, other: int) -> int:
    """Places for four that only one side has stones in: 1, 4 or 16 for one, two or three stones."""
    worth = 0
    for window in range(len(_WINDOWS)):
        mine = theirs = 0
        for place in range(4):
            mine += (own >> _WINDOWS[window, place]) & 1
            theirs += (other >> _WINDOWS[window, place]) & 1
        if theirs == 0:
            worth += WORTH[mine]
        elif mine == 0:
            worth -= WORTH[theirs]
    return worth


@numba.njit(cache=True)
def negamax(own: int, other: int, depth: int, alpha: int, beta: int) -> int:
    """The worth for who moves next, `depth` moves ahead; earlier wins are worth more."""
    if depth == 0:
        return evaluated(own, other)
    taken, best = own | other, -2 * WIN
    for column in _ORDER:
        bit = _placed(taken, column)
        if bit == 0:
            continue
        if _has_four(own | bit):
            return WIN + depth
        worth = -negamax(other, own | bit, depth - 1, -beta, -alpha)
        best = max(best, worth)
        alpha = max(alpha, best)
        if alpha >= beta:
            break
    return 0 if best == -2 * WIN else best  # no move left: a draw


@numba.njit(cache=True)
def best_moves(
    own: np.ndarray, other: np.ndarray, depth: int, draws: np.ndarray, moves: np.ndarray
) -> None:
    """Fills `moves` [N]; `draws` [N] in [0, 1) decide between equally good ones."""
    worths = np.empty(COLUMNS, np.int64)
    for game in range(len(own)):
        best = -4 * WIN
        for column in _ORDER:
            worths[column] = -4 * WIN
            bit = _placed(own[game] | other[game], column)
            if bit == 0:
                continue
            if _has_four(own[game] | bit):
                worths[column] = WIN + depth
            else:
                # The window lets equal moves through, so that ties are seen as ties.
                worths[column] = -negamax(
                    other[game], own[game] | bit, depth - 1, -2 * WIN, 1 - max(best, -2 * WIN)
                )
            best = max(best, worths[column])
        chosen = int(draws[game] * np.sum(worths == best))
        for column in range(COLUMNS):
            if worths[column] == best:
                if chosen == 0:
                    moves[game] = column
                chosen -= 1
