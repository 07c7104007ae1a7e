# SPDX-License-Identifier: Apache-2.0
"""Games by the name that a user types: native ones, and those of PettingZoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veldt.errors import ConfigurationError, did_you_mean
from veldt.games.board_games import ConnectFour, TicTacToe
from veldt.games.interface import VectorGame
from veldt.games.native import NativeGame
from veldt.games.pettingzoo_games import PREFIX, make_pettingzoo
from veldt.games.poker import KuhnPoker, LeducPoker
from veldt.games.rock_paper_scissors import RockPaperScissors

GAMES: dict[str, Callable[..., NativeGame]] = {
    "veldt:rock_paper_scissors": RockPaperScissors,
    "veldt:kuhn": KuhnPoker,
    "veldt:leduc": LeducPoker,
    "veldt:tic_tac_toe": TicTacToe,
    "veldt:connect_four": ConnectFour,
}


def make_game(
    name: str, num_games: int, seed: int = 0, same_step_reset: bool = False, **options: Any
) -> NativeGame:
    """`num_games` native games, stepped together. The same seed gives the same games.

    Args:
        name: A key of `GAMES`.
        num_games: How many games.
        seed: Seed of all chance events.
        same_step_reset: Whether a step that ends a game begins the next one at once.
        options: Keyword arguments of the game, such as `opening_moves`.
    """
    if name not in GAMES:
        raise ConfigurationError(f"unknown game '{name}'; {did_you_mean(name, GAMES)}")
    if num_games < 1:
        raise ConfigurationError(f"num_games is {num_games}; use 1 or more")
    return GAMES[name](num_games, seed=seed, same_step_reset=same_step_reset, **options)


def make_games(
    name: str, num_games: int, seed: int = 0, same_step_reset: bool = False, **options: Any
) -> VectorGame:
    """`num_games` games of "veldt:<game>" or "pettingzoo:<module>", stepped together."""
    make = make_pettingzoo if name.startswith(PREFIX) else make_game
    try:
        return make(name, num_games, seed, same_step_reset, **options)
    except TypeError as error:
        raise ConfigurationError(f"cannot make '{name}': {error}") from error


def num_players(name: str, **options: Any) -> int:
    """The number of players of one such game."""
    game = make_games(name, 1, **options)
    game.close()
    return game.spec.num_players
