# SPDX-License-Identifier: Apache-2.0
"""Games by the name that a user types: our own, and those of PettingZoo."""

from __future__ import annotations

from typing import Any

from veldt.errors import ConfigurationError
from veldt.games.interface import VectorGame
from veldt.games.pettingzoo_games import PREFIX, make_pettingzoo
from veldt.games.registry import make_game


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
    """How many play one such game."""
    game = make_games(name, 1, **options)
    game.close()
    return game.spec.num_players
