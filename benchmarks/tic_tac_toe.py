# SPDX-License-Identifier: Apache-2.0
"""Perfect play in tic-tac-toe, as a scripted opponent of a league.

`--scripted-opponents benchmarks.tic_tac_toe:minimax`, from the repository's root.
"""

from __future__ import annotations

import functools

import numpy as np

from veldt.games.native_games import TicTacToe

CELLS = TicTacToe.num_actions
_LINE_BITS = tuple(int(line @ (1 << np.arange(CELLS))) for line in TicTacToe.lines.T)
_FULL = (1 << CELLS) - 1


def minimax(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Probabilities [N, 9]: uniform over perfect moves."""
    bits = 1 << np.arange(CELLS)
    owns, others = seen[:, CELLS : 2 * CELLS] @ bits, seen[:, 2 * CELLS :] @ bits
    boards = zip(owns.astype(int).tolist(), others.astype(int).tolist(), strict=True)
    moves = np.array([_perfect_bits(own, other) for own, other in boards], dtype=np.int64)
    best = moves[:, None] & bits > 0
    return best / best.sum(axis=1, keepdims=True)


@functools.cache
def minimax_value(own: int, other: int) -> int:
    """1, 0 or -1 for who is to move, with perfect play by both. Stones are bits of an integer."""
    if any(other & line == line for line in _LINE_BITS):
        return -1
    if own | other == _FULL:
        return 0
    return max(-minimax_value(other, own | bit) for bit in _free_bits(own, other))


@functools.cache
def _perfect_bits(own: int, other: int) -> int:
    value = minimax_value(own, other)
    return sum(b for b in _free_bits(own, other) if -minimax_value(other, own | b) == value)


def _free_bits(own: int, other: int) -> list[int]:
    return [1 << cell for cell in range(CELLS) if not (own | other) >> cell & 1]
