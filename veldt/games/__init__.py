# SPDX-License-Identifier: Apache-2.0
"""Games of several players: one vectorised interface, native games, exact measures, PettingZoo."""

from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.games.registry import GAMES, make_game

__all__ = ["GAMES", "GameSpec", "GameStep", "VectorGame", "make_game"]
