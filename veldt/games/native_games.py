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
    state_names = ("cards", "moves", "num_moves")
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
    state_names = ("cards", "moves", "num_moves", "round", "paid", "raises")
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


_ALL = (RockPaperScissors, KuhnPoker, LeducPoker, TicTacToe, ConnectFour)
GAMES: dict[str, type[NativeGame]] = {game.id: game for game in _ALL}
