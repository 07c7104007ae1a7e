# SPDX-License-Identifier: Apache-2.0
"""A game that counts, so that every row of every player's column can be checked by hand.

The observation names the row: [game, episode, moves so far, player]. A reward names who received
it and in which move; rewards add up without carrying, so that a wrong sum shows.
"""

import numpy as np

from veldt.games.interface import GameStep, NativeGame

DEFAULT_LENGTHS = (5, 2, 7, 1)
DEFAULT_ORDER = (0, 1, 1, 2)
"""Who moves: player 1 has two moves on end, and player 0 may end a game before 2 has moved."""


class CountingGame(NativeGame):
    """Move number t (1, 2, ...) pays player p the reward 1000 * p + t. Episode e of game b lasts
    lengths[(b + e) % len(lengths)] moves; even episodes terminate, odd ones are truncated. Action a
    is forbidden for player p after t moves if (a + t + p) % 3 is 0."""

    id, observation_size, num_actions = "veldt:counting_game", 4, 4

    def __init__(self, num_games: int, seed: int = 0) -> None:
        self.num_players = max(DEFAULT_ORDER) + 1
        self._order, self._lengths = np.array(DEFAULT_ORDER), np.array(DEFAULT_LENGTHS)
        super().__init__(num_games, seed)

    def _allocate(self) -> None:
        self.num_moves = np.zeros(self.num_games, dtype=np.int64)

    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        odd = self.episodes % 2 == 1
        step = super().step(actions, games)
        step.truncated[odd], step.terminated[odd] = step.terminated[odd], False
        return step

    def _begin(self, games: np.ndarray, deals: np.ndarray) -> None:
        self.num_moves[games] = 0
        self.turns[games] = self._order[0]

    def _play(self, games: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.num_moves[games] += 1
        moves = self.num_moves[games]
        self.turns[games] = self._order[moves % len(self._order)]
        over = moves == self._lengths[(games + self.episodes[games]) % len(self._lengths)]
        return 1000 * np.arange(self.num_players) + moves[:, None], over

    def _seen(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        columns = (games, self.episodes[games], self.num_moves[games], players)
        return np.stack(columns, axis=1).astype(np.float32)

    def _allowed(self, games: np.ndarray, players: np.ndarray) -> np.ndarray:
        actions = np.arange(self.num_actions)
        return (actions + (self.num_moves[games] + players)[:, None]) % 3 != 0


def length_of(game, episode):
    return DEFAULT_LENGTHS[(game + episode) % len(DEFAULT_LENGTHS)]


def allowed(moves, player):
    return [(action + moves + player) % 3 != 0 for action in range(4)]


def learning_rows(game, num_rows):
    """What the contract says of one game's learning seat, worked out move by move."""
    rows, episode = [], 0
    while len(rows) < num_rows:
        seat, length = (game + episode) % 3, length_of(game, episode)
        mine = [move for move in range(length) if DEFAULT_ORDER[move % 4] == seat]
        for move, following in zip(mine, [*mine[1:], length], strict=False):
            rows.append(
                {
                    "seen": [game, episode, move, seat],
                    "mask": allowed(move, seat),
                    "reward": sum(1000 * seat + paid for paid in range(move + 1, following + 1)),
                    "terminated": following == length and episode % 2 == 0,
                    "truncated": following == length and episode % 2 == 1,
                    "final": [game, episode, length, seat] if following == length else None,
                }
            )
        episode += 1
    return rows[:num_rows]
