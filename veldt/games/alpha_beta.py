# SPDX-License-Identifier: Apache-2.0
"""A fixed opponent for Connect Four: alpha-beta of a given depth, and matches against it.

Where numba cannot be imported, every line is looked at instead: slower, with the same moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.games.connect_four import ConnectFour
from veldt.games.full_width import full_width_moves
from veldt.games.information_tree import PolicyFunction
from veldt.games.interface import actions_of


def alpha_beta_moves(
    own: np.ndarray, other: np.ndarray, depth: int, random: np.random.Generator
) -> np.ndarray:
    """int64 [N]: the best column of each position, `depth` moves ahead, ties drawn. `own` and
    `other` are bitboards [N] of who moves and of the opponent."""
    if depth < 1:
        raise ValueError(f"depth is {depth}; look at least 1 move ahead")
    draws = random.random(len(own))
    try:
        from veldt.games import alpha_beta_kernels as kernels
    except ImportError:
        return full_width_moves(own, other, depth, draws)
    moves = np.full(len(own), -1)
    kernels.best_moves(own, other, depth, draws, moves)
    return moves


@dataclass(frozen=True)
class Score:
    """Results of a policy, [first seat, second seat]."""

    wins: tuple[int, int]
    draws: tuple[int, int]
    losses: tuple[int, int]

    @property
    def win_rate(self) -> float:
        """Share of games won; draws are no wins."""
        games = sum(self.wins) + sum(self.draws) + sum(self.losses)
        return sum(self.wins) / games


def play_against_alpha_beta(
    policy: PolicyFunction,
    num_games: int,
    depth: int = 4,
    seed: int = 0,
    opening_moves: int = 2,
    greedy: bool = True,
) -> Score:
    """Matches of a policy, which has the first seat in every second game. The first
    `opening_moves` are drawn uniformly, or else few different games would be played; `greedy` takes
    the most likely action, otherwise it is drawn."""
    game, random = ConnectFour(num_games), np.random.default_rng(seed)
    game.reset()
    seats = np.arange(num_games) % 2
    results = np.zeros(num_games, dtype=np.int64)
    for ply in range(42):
        mover, playing = ply % 2, ~game.waiting_for_reset
        if not playing.any():
            break
        legal = game.legal(game.turn)
        if ply < opening_moves:
            moves = np.where(legal, random.random(legal.shape), -1.0).argmax(axis=1)
        else:
            moves = np.zeros(num_games, dtype=np.int64)
            own = np.flatnonzero(playing & (seats == mover))
            if len(own):
                seen = game.observe(game.turn)["observation"][own]
                moves[own] = _chosen(policy(seen, legal[own]), legal[own], greedy, random)
            rival = np.flatnonzero(playing & (seats != mover))
            boards = game.stones[rival]
            moves[rival] = alpha_beta_moves(boards[:, mover], boards[:, 1 - mover], depth, random)
        step = game.step(actions_of(game.turn, moves, 2), playing)
        results += step.rewards[np.arange(num_games), seats].astype(np.int64)
    by_seat = [[np.count_nonzero(results[seats == s] == r) for s in (0, 1)] for r in (1, 0, -1)]
    wins, draws, losses = ((int(first), int(second)) for first, second in by_seat)
    return Score(wins, draws, losses)


def _chosen(
    scores: np.ndarray, legal: np.ndarray, greedy: bool, random: np.random.Generator
) -> np.ndarray:
    """Actions by probabilities [N, A]: the most likely legal ones, or drawn among them."""
    scores = np.where(legal, scores, -1.0 if not greedy else -np.inf)
    if greedy:
        return scores.argmax(axis=1)
    # The largest of log p + Gumbel noise is a draw by p.
    with np.errstate(divide="ignore"):
        noisy = np.log(np.maximum(scores, 0.0)) + random.gumbel(size=scores.shape)
    return noisy.argmax(axis=1)
