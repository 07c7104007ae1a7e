# SPDX-License-Identifier: Apache-2.0
"""Players that follow a rule, by name: opponents that a league can have beside its own past.

They see what a policy sees: observations from their own side of the board, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games.alpha_beta import alpha_beta_moves
from veldt.games.connect_four import boards_of
from veldt.games.minimax import minimax_policy

Script = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Observations [N, O], legal actions [N, A], where to draw from -> probabilities [N, A]."""

RANDOM, ALPHA_BETA, MINIMAX = "random", "alpha_beta", "minimax"
_DEEPEST = 12
_GAME_OF = {ALPHA_BETA: "veldt:connect_four", MINIMAX: "veldt:tic_tac_toe"}


def scripted_player(name: str, game: str) -> Script:
    """`random`, `alpha_beta:DEPTH` for Connect Four, `minimax` for tic-tac-toe."""
    rule, _, depth = name.partition(":")
    if rule != RANDOM and _GAME_OF.get(rule) != game:
        known = [RANDOM, *(own for own, its_game in _GAME_OF.items() if its_game == game)]
        raise ConfigurationError(
            f"{game} has no scripted opponent '{name}'; use {' or '.join(known)}"
        )
    if rule != ALPHA_BETA:
        return _random if rule == RANDOM else _minimax
    if not depth.isdigit() or not 1 <= int(depth) <= _DEEPEST:
        raise ConfigurationError(
            f"'{name}' does not say how far to look ahead; use {ALPHA_BETA}:4, at most"
            f" {ALPHA_BETA}:{_DEEPEST}"
        )
    return _AlphaBeta(int(depth))


def _random(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return legal / legal.sum(axis=1, keepdims=True)


def _minimax(seen: np.ndarray, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return minimax_policy(seen, legal)


@dataclass(frozen=True)
class _AlphaBeta:
    depth: int

    def __call__(
        self, seen: np.ndarray, legal: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        own, other = boards_of(seen)
        certain = np.zeros(legal.shape)
        certain[np.arange(len(seen)), alpha_beta_moves(own, other, self.depth, random)] = 1.0
        return certain
