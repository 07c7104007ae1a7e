# SPDX-License-Identifier: Apache-2.0
"""Rock-paper-scissors, Kuhn and Leduc poker, tic-tac-toe and Connect Four.

Kuhn: three cards, one each, one bet; 12 information states; in equilibrium the first player loses
1/18 per game. Leduc: six cards (three ranks, two suits), one private card each and a public one,
two rounds with bets of 2 and then 4, at most two raises a round; a pair with the public card wins,
then the higher rank; 936 information states; in equilibrium the first player loses 0.0856.
Observations of both are those of OpenSpiel. Boards are planes, seen from the mover, so that one
policy can learn both seats: empty cells, own stones, the other's.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games.interface import NativeGame, zero_sum

PASS, BET = range(2)
_KUHN_DEALS = np.array(list(itertools.permutations(range(3), 2)))
_MOST_KUHN_MOVES = 3

FOLD, CALL, RAISE = range(3)
_NUM_CARDS, _MOST_RAISES, _BETS = 6, 2, np.array([2, 4])
_LEDUC_DEALS = np.array(list(itertools.permutations(range(_NUM_CARDS), 3)))
_MOST_ROUND_MOVES = 4  # call, raise, raise, call
_RANKS = "JQK"
_HOT = {size: np.eye(size + 1, size, dtype=np.float32) for size in (2, 3, 6)}
"""One-hot rows by size and value; -1 is the last row, which is all zeros."""

EMPTY = -1
_STONES = ".XO"


class RockPaperScissors(NativeGame):
    """One simultaneous move. Reward 1, 0 or -1; the observation is a single 1."""

    id, observation_size, num_actions = "veldt:rock_paper_scissors", 1, 3
    simultaneous = True
    action_names = ("rock", "paper", "scissors")

    def drawn(self, player: int) -> str:
        return "both choose at once"

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Each beats the one before it, in a circle: 1 is a win, 2 is a defeat.
        ahead = (actions[:, 0] - actions[:, 1]) % 3
        return zero_sum(np.where(ahead == 2, -1, ahead)), np.ones(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return np.ones((len(games), 1), dtype=np.float32)


class KuhnPoker(NativeGame):
    """Observation: player (2), own card (3), the moves so far (3 x 2)."""

    id, observation_size, num_actions = "veldt:kuhn", 11, 2
    action_names = ("pass", "bet")
    num_deals = len(_KUHN_DEALS)

    def _allocate(self) -> None:
        self.cards = np.zeros((self.num_games, 2), dtype=np.int64)
        self.moves = np.full((self.num_games, _MOST_KUHN_MOVES), -1)
        self.num_moves = np.zeros(self.num_games, dtype=np.int64)

    def drawn(self, player: int) -> str:
        moves = [self.action_names[move] for move in self.moves[0] if move >= 0]
        return f"your card: {_RANKS[self.cards[0, player]]}; moves: {', '.join(moves) or 'none'}"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _KUHN_DEALS[deals]
        self.moves[games] = -1
        self.num_moves[games] = 0

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover, count = self.turns[games], self.num_moves[games]
        facing_bet = (count > 0) & (self.moves[games, count - 1] == BET)
        self.moves[games, count] = actions
        self.num_moves[games] = count + 1
        self.turns[games] = 1 - mover

        folded = facing_bet & (actions == PASS)
        called = facing_bet & (actions == BET)
        checked = (count == 1) & ~facing_bet & (actions == PASS)
        sign = np.where(self.cards[games, 0] > self.cards[games, 1], 1, -1)
        sign = np.where(folded, np.where(mover == 1, 1, -1), sign)
        first = sign * np.where(called, 2, 1) * (folded | called | checked)
        return zero_sum(first), folded | called | checked

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        card = _HOT[3][self.cards[games, players]]
        moves = _HOT[2][self.moves[games]].reshape(len(games), -1)
        return np.concatenate([_HOT[2][players], card, moves], axis=1)


def _strength(private: np.ndarray, public: np.ndarray) -> np.ndarray:
    """The larger one wins; both cards of a rank are equal."""
    ranks = private // 2
    return np.where(ranks == public // 2, _NUM_CARDS + ranks, ranks)


class LeducPoker(NativeGame):
    """Observation: player (2), own card (6), public card (6, zeros before the second
    round), calls and raises of each round (2 x 4 x 2). Folding is legal only against a raise."""

    id, observation_size, num_actions = "veldt:leduc", 30, 3
    action_names = ("fold", "call", "raise")
    num_deals = len(_LEDUC_DEALS)

    def _allocate(self) -> None:
        self.cards = np.zeros((self.num_games, 3), dtype=np.int64)
        self.moves = np.full((self.num_games, 2, _MOST_ROUND_MOVES), -1)
        self.paid = np.ones((self.num_games, 2), dtype=np.int64)
        self.num_moves, self.round, self.raises = np.zeros((3, self.num_games), np.int64)

    def drawn(self, player: int) -> str:
        rounds = [
            ", ".join(self.action_names[CALL + move] for move in moves if move >= 0) or "none"
            for moves in self.moves[0]
        ]
        own = _RANKS[self.cards[0, player] // 2]
        public = _RANKS[self.cards[0, 2] // 2] if self.round[0] else "not shown yet"
        paid = self.paid[0]
        return f"your card: {own}; public card: {public}; paid: {paid}; moves: {'; '.join(rounds)}"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cards[games] = _LEDUC_DEALS[deals]
        self.moves[games] = -1
        self.paid[games] = 1
        for counter in (self.num_moves, self.round, self.raises):
            counter[games] = 0

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover, count, round_ = self.turns[games], self.num_moves[games], self.round[games]
        self.moves[games, round_, count] = actions - CALL  # a fold ends the game; -1 is no move
        self.num_moves[games] = count + 1
        self.turns[games] = 1 - mover

        raised, called, folded = actions == RAISE, actions == CALL, actions == FOLD
        stake = self.paid[games].max(axis=1) + np.where(raised, _BETS[round_], 0)
        self.paid[games, mover] = np.where(folded, self.paid[games, mover], stake)
        self.raises[games] += raised

        round_over = called & (count > 0)
        showdown = round_over & (round_ == 1)
        self._next_round(games[round_over & (round_ == 0)])
        return zero_sum(self._first_wins(games, folded, showdown)), folded | showdown

    def _next_round(self, games: np.ndarray) -> None:
        self.round[games] = 1
        for counter in (self.num_moves, self.raises, self.turns):
            counter[games] = 0

    def _first_wins(
        self, games: np.ndarray, folded: np.ndarray, showdown: np.ndarray
    ) -> np.ndarray:
        """The first player's reward: the other's stake, or minus its own."""
        cards, paid = self.cards[games], self.paid[games]
        strength = _strength(cards[:, :2], cards[:, 2:])
        shown = np.sign(strength[:, 0] - strength[:, 1]) * paid[:, 0]
        # The turn has passed: it belongs to the winner when the other has folded.
        left = np.where(self.turns[games] == 0, paid[:, 1], -paid[:, 0])
        return np.where(folded, left, np.where(showdown, shown, 0))

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        private = _HOT[_NUM_CARDS][self.cards[games, players]]
        public = _HOT[_NUM_CARDS][np.where(self.round[games] == 1, self.cards[games, 2], -1)]
        moves = _HOT[2][self.moves[games]].reshape(len(games), -1)
        return np.concatenate([_HOT[2][players], private, public, moves], axis=1)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        allowed = super()._allowed(games, players)
        allowed[:, FOLD] = self.paid[games, players] < self.paid[games, 1 - players]
        allowed[:, RAISE] = self.raises[games] < _MOST_RAISES
        return allowed


def lines_on(rows: int, columns: int, length: int) -> np.ndarray:
    """float32 [cells, lines]: which cells each straight line of `length` cells has."""
    lines = []
    for row, column in np.ndindex(rows, columns):
        for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            if row + up * (length - 1) < rows and 0 <= column + right * (length - 1) < columns:
                line = np.zeros((rows, columns), np.float32)
                for step in range(length):
                    line[row + up * step, column + right * step] = 1.0
                lines.append(line.reshape(-1))
    return np.stack(lines, axis=1)


def has_line(stones: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """bool [N]: whether `stones`, bool [N, cells], fill a line."""
    return (stones.astype(np.float32) @ lines == lines[:, 0].sum()).any(axis=1)


def planes(cells: np.ndarray, players: np.ndarray) -> np.ndarray:
    """float32 [N, 3 * cells]: empty cells, own stones, the other's."""
    own, other = players[:, None], 1 - players[:, None]
    return np.concatenate([cells == EMPTY, cells == own, cells == other], axis=1, dtype=np.float32)


class BoardGame(NativeGame):
    """Two players put stones on cells. Reward 1 for a line, -1 for the other, 0 for a full board.

    The first moves, up to `opening_moves`, are drawn at random."""

    lines: np.ndarray
    most_opening_moves: int

    def __init__(self, num_games: int, seed: int = 0, opening_moves: int = 0) -> None:
        most = self.most_opening_moves
        if not 0 <= opening_moves <= most:
            raise ConfigurationError(f"opening_moves is {opening_moves}; use 0 to {most}")
        self.opening_moves = opening_moves
        self.action_names = tuple(str(action + 1) for action in range(self.num_actions))
        super().__init__(num_games, seed)

    def _allocate(self) -> None:
        self.cells = np.full((self.num_games, len(self.lines)), EMPTY)

    def _cell(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The cell of each action's stone."""
        return actions

    def _place(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Place the next stones; returns the players who did."""
        mover = self.turns[games]
        self.cells[games, self._cell(games, actions)] = mover
        self.turns[games] = 1 - mover
        return mover

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mover = self._place(games, actions)
        cells = self.cells[games]
        won = has_line(cells == mover[:, None], self.lines)
        over = won | (cells != EMPTY).all(axis=1)
        return zero_sum(np.where(won, np.where(mover == 0, 1, -1), 0)), over

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return planes(self.cells[games], players)


class TicTacToe(BoardGame):
    """Cells 0 to 8, row by row. Zero to `opening_moves` random moves open a game, each number
    equally likely."""

    id, observation_size, num_actions = "veldt:tic_tac_toe", 27, 9
    lines = lines_on(3, 3, 3)
    most_opening_moves = 4  # one more could win

    def _allocate(self) -> None:
        super()._allocate()
        self.num_deals = (self.opening_moves + 1) * math.perm(9, self.opening_moves)

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
            free, playing = 9 - move, count > move
            empty = np.cumsum(self.cells[games] == EMPTY, axis=1)
            cells = np.argmax(empty == (deals % free)[:, None] + 1, axis=1)
            self._place(games[playing], cells[playing])
            deals = deals // free

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return self.cells[games] == EMPTY


COLUMNS, ROWS = 7, 6


class ConnectFour(BoardGame):
    """The action is the column; `opening_moves` random moves open each game.

    Cells are numbered row by row from the bottom."""

    id, observation_size, num_actions = "veldt:connect_four", 3 * ROWS * COLUMNS, COLUMNS
    lines = lines_on(ROWS, COLUMNS, 4)
    most_opening_moves = ROWS - 1  # fewer than a column holds, and than it takes to win

    def _allocate(self) -> None:
        super()._allocate()
        self.num_deals = COLUMNS**self.opening_moves

    def drawn(self, player: int) -> str:
        board = self.cells[0].reshape(ROWS, COLUMNS)[::-1] - EMPTY
        lines = [" ".join(_STONES[cell] for cell in row) for row in board]
        return "\n".join([*lines, " ".join(self.action_names)])

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.cells[games] = EMPTY
        for _ in range(self.opening_moves):
            self._place(games, deals % COLUMNS)
            deals = deals // COLUMNS

    def _cell(self, games: np.ndarray, actions: np.ndarray) -> np.ndarray:
        columns = self.cells[games].reshape(-1, ROWS, COLUMNS)[np.arange(len(games)), :, actions]
        return np.count_nonzero(columns != EMPTY, axis=1) * COLUMNS + actions

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return self.cells[games, -COLUMNS:] == EMPTY


_ALL = (RockPaperScissors, KuhnPoker, LeducPoker, TicTacToe, ConnectFour)
GAMES: dict[str, type[NativeGame]] = {game.id: game for game in _ALL}
