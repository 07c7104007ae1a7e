# SPDX-License-Identifier: Apache-2.0
"""What a player sees of one game, as text for a terminal, and what its actions are called."""

from __future__ import annotations

import numpy as np

from veldt.games.connect_four import COLUMNS, ROWS, ConnectFour, cells_of
from veldt.games.interface import VectorGame
from veldt.games.kuhn import KuhnPoker
from veldt.games.leduc import LeducPoker
from veldt.games.rock_paper_scissors import RockPaperScissors
from veldt.games.tic_tac_toe import TicTacToe

_STONES = ".XO"
_KUHN, _LEDUC = ("pass", "bet"), ("fold", "call", "raise")
_HANDS = ("rock", "paper", "scissors")


def drawn(game: VectorGame, player: int) -> str:
    """The first of the games as `player` sees it."""
    if isinstance(game, ConnectFour):
        first, second = cells_of(game.stones[0])
        board = (first + 2 * second).reshape(ROWS, COLUMNS)[::-1]
        lines = [" ".join(_STONES[cell] for cell in row) for row in board]
        return "\n".join([*lines, " ".join(str(column + 1) for column in range(COLUMNS))])
    if isinstance(game, TicTacToe):
        board = np.array([_STONES[cell + 1] for cell in game.cells[0]])
        numbers = np.array([str(cell + 1) for cell in range(9)])
        shown = np.where(board == ".", numbers, board).reshape(3, 3)
        return "\n".join(" ".join(row) for row in shown)
    if isinstance(game, KuhnPoker):
        said = [_KUHN[move] for move in game.moves[0] if move >= 0]
        return f"your card: {'JQK'[game.cards[0, player]]}; moves: {', '.join(said) or 'none'}"
    if isinstance(game, LeducPoker):
        rounds = [[("call", "raise")[m] for m in moves if m >= 0] for moves in game.moves[0]]
        public = "JQK"[game.cards[0, 2] // 2] if game.round[0] else "not shown yet"
        spoken = "; ".join(", ".join(moves) or "none" for moves in rounds)
        own = "JQK"[game.cards[0, player] // 2]
        return f"your card: {own}; public card: {public}; paid: {game.paid[0]}; moves: {spoken}"
    if isinstance(game, RockPaperScissors):
        return "both choose at once"
    return str(game.observe(np.array([player]), np.array([0])))


def action_names(game: VectorGame) -> list[str]:
    """What a person types for each action."""
    if isinstance(game, KuhnPoker):
        return list(_KUHN)
    if isinstance(game, LeducPoker):
        return list(_LEDUC)
    if isinstance(game, RockPaperScissors):
        return list(_HANDS)
    if isinstance(game, ConnectFour | TicTacToe):
        return [str(action + 1) for action in range(game.spec.action_mask_size)]
    return [str(action) for action in range(game.spec.action.sizes[0])]
