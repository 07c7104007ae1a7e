# SPDX-License-Identifier: Apache-2.0
"""Tic-tac-toe and Connect Four. Observations are planes: empty cells, own stones, the other's.

Seen from the mover, so that one policy can learn both seats (OpenSpiel shows crosses and noughts).
"""

from __future__ import annotations

import math

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games.interface import NativeGame, zero_sum

CELLS = 9
LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)
EMPTY = -1

COLUMNS, ROWS, HEIGHT = 7, 6, 7
_ROWS, _COLUMNS = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
BITS = (HEIGHT * _COLUMNS + _ROWS).astype(np.int64)
"""Bit of each cell of Connect Four, row by row from the bottom."""
_TOPS = np.array([HEIGHT * column + ROWS - 1 for column in range(COLUMNS)])
_STONES = ".XO"


class BoardGame(NativeGame):
    """A game of two players whose first moves, up to `opening_moves`, are drawn at random."""

    most_opening_moves: int

    def __init__(self, num_games: int, seed: int = 0, opening_moves: int = 0) -> None:
        most = self.most_opening_moves
        if not 0 <= opening_moves <= most:
            raise ConfigurationError(f"opening_moves is {opening_moves}; use 0 to {most}")
        self.opening_moves = opening_moves
        self.action_names = tuple(str(action + 1) for action in range(self.num_actions))
        super().__init__(num_games, seed)


def has_line(stones: np.ndarray) -> np.ndarray:
    """bool [N]: whether `stones`, bool [N, 9], hold three in a row."""
    return np.any(np.all(stones[:, LINES], axis=2), axis=1)


def planes(cells: np.ndarray, players: np.ndarray) -> np.ndarray:
    """float32 [N, 27]: empty cells, own stones, the other's."""
    own, other = players[:, None], 1 - players[:, None]
    return np.concatenate([cells == EMPTY, cells == own, cells == other], axis=1, dtype=np.float32)


class TicTacToe(BoardGame):
    """Cells 0 to 8, row by row. Reward 1 for three in a row, -1 for the other, 0 for a draw.

    Zero to `opening_moves` random moves open a game, each number equally likely."""

    id, observation_size, num_actions = "veldt:tic_tac_toe", 3 * CELLS, CELLS
    most_opening_moves = 4  # one more could win
    state_names = ("cells",)

    def _allocate(self) -> None:
        self.num_deals = (self.opening_moves + 1) * math.perm(CELLS, self.opening_moves)
        self.cells = np.full((self.num_games, CELLS), EMPTY)

    def drawn(self, player: int) -> str:
        shown = [
            self.action_names[number] if cell == EMPTY else _STONES[cell + 1]
            for number, cell in enumerate(self.cells[0])
        ]
        return "\n".join(" ".join(shown[row : row + 3]) for row in (0, 3, 6))

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

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover = self.turns[games]
        self.cells[games, actions] = mover
        self.turns[games] = 1 - mover
        cells = self.cells[games]
        won = has_line(cells == mover[:, None])
        over = won | (cells != EMPTY).all(axis=1)
        first = np.where(won, np.where(mover == 0, 1, -1), 0)
        return zero_sum(first), over

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return planes(self.cells[games], players)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return self.cells[games] == EMPTY


def has_four(stones: np.ndarray) -> np.ndarray:
    """bool [N]: whether the bitboards hold four in a row."""
    found = np.zeros(len(stones), dtype=bool)
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> shift)
        found |= (pairs & (pairs >> (2 * shift))) != 0
    return found


def cells_of(stones: np.ndarray) -> np.ndarray:
    """bool [N, 42]: the cells of bitboards, row by row from the bottom."""
    return (stones[:, None] >> BITS) & 1 == 1


class ConnectFour(BoardGame):
    """The action is the column; `opening_moves` random moves open each game.

    The stones of a player are the bits of one integer: bit 7 * column + row, row 0 at the bottom.
    The seventh bit of a column is never set, so that shifted boards do not run into the next one.
    """

    id, observation_size, num_actions = "veldt:connect_four", 3 * ROWS * COLUMNS, COLUMNS
    most_opening_moves = ROWS - 1  # fewer than a column holds, and than it takes to win
    state_names = ("stones", "num_moves")

    def _allocate(self) -> None:
        self.num_deals = COLUMNS**self.opening_moves
        self.stones = np.zeros((self.num_games, 2), dtype=np.int64)
        self.num_moves = np.zeros(self.num_games, dtype=np.int64)

    def drawn(self, player: int) -> str:
        first, second = cells_of(self.stones[0])
        board = (first + 2 * second).reshape(ROWS, COLUMNS)[::-1]
        lines = [" ".join(_STONES[cell] for cell in row) for row in board]
        return "\n".join([*lines, " ".join(self.action_names)])

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.stones[games] = 0
        self.num_moves[games] = 0
        for _ in range(self.opening_moves):
            self._place(games, deals % COLUMNS)
            deals = deals // COLUMNS

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover = self._place(games, actions)
        won = has_four(self.stones[games, mover])
        over = won | (self.num_moves[games] == ROWS * COLUMNS)
        first = np.where(won, np.where(mover == 0, 1, -1), 0)
        return zero_sum(first), over

    def _place(self, games: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Place the next stones; returns the players who did."""
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
