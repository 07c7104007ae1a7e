# SPDX-License-Identifier: Apache-2.0
"""Rock-paper-scissors, one simultaneous move per game. Only a third each cannot be exploited."""

from __future__ import annotations

import numpy as np

from veldt.games.native import NativeGame, game_spec, zero_sum

ROCK, PAPER, SCISSORS = range(3)


class RockPaperScissors(NativeGame):
    """Reward 1, 0 or -1. The observation is a single 1."""

    action_names = ("rock", "paper", "scissors")

    def __init__(self, num_games: int, seed: int = 0, same_step_reset: bool = False) -> None:
        spec = game_spec(
            "veldt:rock_paper_scissors", 1, 3, simultaneous=True, same_step_reset=same_step_reset
        )
        super().__init__(spec, num_games, seed)

    def drawn(self, player: int) -> str:
        return "both choose at once"

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        pass

    def _play(
        self, games: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Each beats the one before it, in a circle: 1 is a win, 2 is a defeat.
        ahead = (actions[:, 0] - actions[:, 1]) % 3
        first = np.where(ahead == 2, -1, ahead)
        return zero_sum(first), np.ones(len(games), bool), np.zeros(len(games), bool)

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return np.ones((len(games), 1), dtype=np.float32)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        return np.ones((len(games), 3), dtype=bool)
