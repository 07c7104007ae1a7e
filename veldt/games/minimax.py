# SPDX-License-Identifier: Apache-2.0
"""Tic-tac-toe solved: perfect moves, and every line of play against a policy."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from veldt.games.information_tree import PolicyFunction
from veldt.games.tic_tac_toe import CELLS, EMPTY, LINES, has_line, planes

_LINE_BITS = tuple(sum(1 << int(cell) for cell in line) for line in LINES)
_FULL = (1 << CELLS) - 1


class Lines(NamedTuple):
    """How many different games end in which way for the policy."""

    wins: int
    draws: int
    losses: int


@functools.cache
def minimax_value(own: int, other: int) -> int:
    """1, 0 or -1 for who is to move, with perfect play by both. Stones are bits of an integer."""
    if any(other & line == line for line in _LINE_BITS):
        return -1
    if own | other == _FULL:
        return 0
    return max(-minimax_value(other, own | bit) for bit in _free_bits(own, other))


def perfect_moves(cells: np.ndarray, mover: int) -> np.ndarray:
    """bool [N, 9]: the moves of `mover` that minimax calls best, for boards with moves left."""
    bits = 1 << np.arange(CELLS)
    owns, others = (cells == mover) @ bits, (cells == 1 - mover) @ bits
    boards = zip(owns.tolist(), others.tolist(), strict=True)
    moves = np.array([_perfect_bits(own, other) for own, other in boards], dtype=np.int64)
    return moves[:, None] & bits > 0


@functools.cache
def _perfect_bits(own: int, other: int) -> int:
    value = minimax_value(own, other)
    return sum(b for b in _free_bits(own, other) if -minimax_value(other, own | b) == value)


def minimax_policy(observations: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """A policy that draws among perfect moves."""
    own, other = observations[:, CELLS : 2 * CELLS] > 0, observations[:, 2 * CELLS :] > 0
    best = perfect_moves(np.where(own, 0, np.where(other, 1, EMPTY)), mover=0)
    return best / best.sum(axis=1, keepdims=True)


def losses_against_minimax(policy: PolicyFunction, every_move: bool = True) -> tuple[Lines, Lines]:
    """All games of a policy that takes its most likely legal action, in the first and in the second
    seat. The opponent tries every move, also those that minimax would not choose: a mistake may
    lead a policy where it has never been. Not `every_move`: only perfect moves, all of them."""
    return _all_lines(policy, 0, every_move), _all_lines(policy, 1, every_move)


def _all_lines(policy: PolicyFunction, seat: int, every_move: bool) -> Lines:
    """Ply by ply; boards that many lines reach are asked about once."""
    cells, counts = np.full((1, CELLS), EMPTY), np.ones(1, dtype=np.int64)
    wins = losses = 0
    for ply in range(CELLS):
        mover, free = ply % 2, cells == EMPTY
        if mover == seat:
            seen = planes(cells, np.full(len(cells), mover))
            rows = np.arange(len(cells))
            actions = np.where(free, policy(seen, free), -np.inf).argmax(axis=1)
        else:
            rows, actions = np.nonzero(free if every_move else perfect_moves(cells, mover))
        cells, counts = cells[rows], counts[rows]
        cells[np.arange(len(rows)), actions] = mover
        won = has_line(cells == mover)
        if mover == seat:
            wins += int(counts[won].sum())
        else:
            losses += int(counts[won].sum())
        cells, counts = _merged(cells[~won], counts[~won])
        if not len(cells):
            break
    return Lines(wins, int(counts.sum()), losses)


def _merged(cells: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    boards, inverse = np.unique(cells, axis=0, return_inverse=True)
    return boards, np.bincount(inverse.reshape(-1), counts, len(boards)).astype(np.int64)


def _free_bits(own: int, other: int) -> list[int]:
    return [1 << cell for cell in range(CELLS) if not (own | other) >> cell & 1]
