# SPDX-License-Identifier: Apache-2.0
"""The native games by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from veldt.errors import ConfigurationError
from veldt.games.connect_four import ConnectFour
from veldt.games.counting import CountingGame
from veldt.games.kuhn import KuhnPoker
from veldt.games.leduc import LeducPoker
from veldt.games.native import NativeGame
from veldt.games.rock_paper_scissors import RockPaperScissors
from veldt.games.tic_tac_toe import TicTacToe

GAMES: dict[str, Callable[..., NativeGame]] = {
    "veldt:rock_paper_scissors": RockPaperScissors,
    "veldt:kuhn": KuhnPoker,
    "veldt:leduc": LeducPoker,
    "veldt:tic_tac_toe": TicTacToe,
    "veldt:connect_four": ConnectFour,
    "veldt:counting_game": CountingGame,
}


def make_game(
    name: str, num_games: int, seed: int = 0, same_step_reset: bool = False, **options: Any
) -> NativeGame:
    """`num_games` games of a registered name. Same seed, same games. `options`: of the game."""
    if name not in GAMES:
        near = difflib.get_close_matches(name, GAMES, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(GAMES)}"
        raise ConfigurationError(f"unknown game '{name}'; {remedy}")
    if num_games < 1:
        raise ConfigurationError(f"num_games is {num_games}; use 1 or more")
    return GAMES[name](num_games, seed=seed, same_step_reset=same_step_reset, **options)
