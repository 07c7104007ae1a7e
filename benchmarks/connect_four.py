# SPDX-License-Identifier: Apache-2.0
"""Connect Four for the league's benchmark: a network that reads the board, alpha-beta opponents.

Name them from the repository's root: `--network benchmarks.connect_four:network`,
`--scripted-opponents benchmarks.connect_four:alpha_beta_4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import torch
from torch import Tensor, nn

from veldt.games.interface import actions_of
from veldt.games.native_games import COLUMNS, ROWS, ConnectFour
from veldt.games.solvers import PolicyFunction
from veldt.league.strength import policy_of
from veldt.run.loading import restored
from veldt.types import EnvironmentSpec

CELLS = COLUMNS * ROWS
HEIGHT = ROWS + 1  # bits of a column; the highest is never set, so that lines stay in their columns
_ROWS, _COLUMNS = np.divmod(np.arange(CELLS), COLUMNS)
BITS = (HEIGHT * _COLUMNS + _ROWS).astype(np.int64)
"""Bit of each cell, row by row from the bottom."""
WIN = 10_000
WORTH = np.array([0, 1, 4, 16, 0])
"""Of a place for four with so many stones of one side and none of the other."""
_MAPS, _SUMMARIES = 11, 4
_ORDER = np.array([3, 2, 4, 1, 5, 0, 6])  # the middle first: it cuts most
_COLUMN = (1 << HEIGHT) - 1


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
    return (BITS[:, None, None] == windows()).any(axis=2)


def boards_of(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 [N], twice: the own and the other's bitboards of observations [N, 126]."""
    cells = seen.reshape(-1, 3, ROWS * COLUMNS) > 0
    own, other = (cells[:, 1:] @ (np.int64(1) << BITS)).T
    return own, other


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


def alpha_beta_moves(
    own: np.ndarray, other: np.ndarray, depth: int, random: np.random.Generator
) -> np.ndarray:
    """int64 [N]: the best column of each position, `depth` moves ahead, ties drawn. `own` and
    `other` are bitboards [N] of who moves and of the opponent."""
    moves = np.full(len(own), -1)
    best_moves(own, other, depth, random.random(len(own)), moves)
    return moves


def alpha_beta_1(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A scripted opponent of depth 1."""
    return _certain(seen, 1, random)


def alpha_beta_2(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A scripted opponent of depth 2."""
    return _certain(seen, 2, random)


def alpha_beta_3(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A scripted opponent of depth 3."""
    return _certain(seen, 3, random)


def alpha_beta_4(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A scripted opponent of depth 4."""
    return _certain(seen, 4, random)


def _certain(seen: np.ndarray, depth: int, random: np.random.Generator) -> np.ndarray:
    return np.eye(COLUMNS)[alpha_beta_moves(*boards_of(seen), depth, random)]


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
        mover, playing = ply % 2, ~game.over
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
            seen = game.observe(game.turn)["observation"][rival]
            moves[rival] = alpha_beta_moves(*boards_of(seen), depth, random)
        step = game.step(actions_of(game.turn, moves, 2), playing)
        results += step.rewards[np.arange(num_games), seats].astype(np.int64)
    by_seat = [[np.count_nonzero(results[seats == s] == r) for s in (0, 1)] for r in (1, 0, -1)]
    wins, draws, losses = ((int(first), int(second)) for first, second in by_seat)
    return Score(wins, draws, losses)


def win_rate_of(run_dir: Path, num_games: int = 1000) -> float:
    """Share of games that a run's newest model wins against alpha-beta of depth 4."""
    found = restored(run_dir, "last")
    policy = policy_of(found.plan.topology.network, found.weights.vector)
    return play_against_alpha_beta(policy, num_games, seed=1).win_rate


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


class FourInARow(nn.Module):
    """Knows the rules, and learns what follows from them: two layers over maps of the board that
    say where a stone would make four, and where three or two could still grow to four. What can be
    won or must be stopped at once, column by column, also goes past the layers to the heads."""

    places: Tensor
    """float32 [42, 69]: 1 where a cell belongs to a place for four in a row."""

    def __init__(self, sizes: tuple[int, int] = (128, 128)) -> None:
        super().__init__()
        self.register_buffer("places", torch.from_numpy(cell_windows()).float())
        self.hidden = nn.Sequential(
            nn.Linear(_MAPS * CELLS, sizes[0]), nn.ReLU(), nn.Linear(*sizes), nn.ReLU()
        )

    def forward(self, board: Tensor) -> Tensor:
        maps, summaries = self._maps(board)
        features: Tensor = self.hidden(maps)
        return torch.cat([features, summaries], dim=1)

    @torch.no_grad()
    def _maps(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 11 * 42] and [N, 4 * 7]."""
        planes = board.view(-1, 3, CELLS)
        empty, stones = planes[:, :1], planes[:, 1:]
        maps = board.new_empty(len(planes), _MAPS, CELLS)
        playable, urgent = maps[:, 2:3], maps[:, -_SUMMARIES:]
        maps[:, :2] = stones
        playable.copy_(empty)
        playable[:, :, COLUMNS:] -= empty[:, :, :-COLUMNS]
        # Nobody can fill a place that both have stones in: 24 is three alone, 16 two alone.
        counts = stones @ self.places
        counts = 8 * counts + counts.flip(1)
        alone = torch.cat([counts == 24, counts == 16], dim=1).to(board.dtype)
        growing = alone @ self.places.T * empty
        threats = growing[:, :2].clamp_(max=1.0)
        maps[:, 3:7] = growing
        torch.mul(threats, playable, out=urgent[:, :2])
        # One row up: where the other may play once a stone has been put below.
        urgent[:, 2:, :COLUMNS] = 0.0
        torch.mul(threats[:, :, COLUMNS:], playable[:, :, :-COLUMNS], out=urgent[:, 2:, COLUMNS:])
        summaries = urgent.view(-1, _SUMMARIES, ROWS, COLUMNS).amax(dim=2)
        return maps.flatten(1), summaries.flatten(1)


def network(spec: EnvironmentSpec) -> nn.Module:
    if spec.id != "veldt:connect_four":
        raise ValueError(f"this network plays veldt:connect_four, not {spec.id}; use mlp or auto")
    return FourInARow()
