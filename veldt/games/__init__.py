# SPDX-License-Identifier: Apache-2.0
"""Games of several players by name: native ones in NumPy, and those of PettingZoo."""

from __future__ import annotations

from typing import Any

from veldt.environments.lookup import PETTINGZOO_GAMES
from veldt.errors import ConfigurationError, did_you_mean
from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.games.native_games import GAMES
from veldt.games.pettingzoo_games import make_pettingzoo
from veldt.games.seats import SeatColumns

__all__ = ["GAMES", "GameSpec", "GameStep", "VectorGame", "make_game", "open_columns"]


def make_game(name: str, num_games: int, seed: int = 0, **options: Any) -> VectorGame:
    """`num_games` games of "veldt:<game>" or "pettingzoo:<module>", stepped together.

    Args:
        name: A key of `GAMES`, "pettingzoo:<module>" or "pettingzoo:<registered id>".
        num_games: How many games.
        seed: Seed of all chance events; the same one gives the same games.
        options: Keyword arguments of the game, such as `opening_moves`.
    """
    is_pettingzoo = name.startswith(PETTINGZOO_GAMES)
    if not is_pettingzoo and name not in GAMES:
        raise ConfigurationError(f"unknown game '{name}'; {did_you_mean(name, GAMES)}")
    try:
        if is_pettingzoo:
            return make_pettingzoo(name, num_games, seed, **options)
        return GAMES[name](num_games, seed, **options)
    except TypeError as error:
        raise ConfigurationError(f"cannot make '{name}': {error}") from error


def open_columns(name: str, num_envs: int, options: dict[str, Any]) -> tuple[SeatColumns, int]:
    """Games with `num_envs` seats in all as columns for one policy, and columns per env step."""
    one = make_game(name, 1, **options)
    one.close()
    players = one.spec.num_players
    columns = SeatColumns(make_game(name, -(-num_envs // players), **options), num_envs)
    return columns, 1 if one.spec.simultaneous else players
