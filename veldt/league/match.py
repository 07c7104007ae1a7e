# SPDX-License-Identifier: Apache-2.0
"""Two models against each other: games from both seats, actions drawn as in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from veldt.games import make_game, num_players
from veldt.games.seats import LearningSeat, PendingMoves
from veldt.networks import FlatParameters, NetworkFactory, PolicyValueOutput
from veldt.types import ACTION_MASK


class ModelPlayer:
    """One model in some seats of many games, with a recurrent state for each of them."""

    def __init__(
        self, network: NetworkFactory, vector: np.ndarray, num_rows: int, seed: int
    ) -> None:
        self._network = network.make().eval()
        FlatParameters(self._network).load(np.asarray(vector, np.float32))
        self._random = np.random.default_rng(seed)
        self._states = self._network.initial_state(num_rows)
        self._first = torch.ones(num_rows, dtype=torch.bool)

    def begin(self, rows: np.ndarray) -> None:
        """New games in `rows`."""
        self._first[torch.from_numpy(rows)] = True

    def probabilities(
        self, rows: np.ndarray, seen: Mapping[str, np.ndarray], legal: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits, and actions drawn from them."""
        arrays = dict(seen) if legal is None else {**seen, ACTION_MASK: legal}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        places = torch.from_numpy(rows)
        state = tuple(memory[places] for memory in self._states)
        with torch.inference_mode():
            outputs, state = self._network.step(tensors, state, self._first[places])
        for memory, new in zip(self._states, state, strict=True):
            memory[places] = new.clone()
        self._first[places] = False
        assert isinstance(outputs, PolicyValueOutput)
        logits, distribution = outputs.logits.numpy(), self._network.distribution
        assert distribution is not None
        return logits, distribution.env_action(distribution.sample(logits, self._random))

    def act(
        self, rows: np.ndarray, seen: Mapping[str, np.ndarray], legal: np.ndarray | None
    ) -> np.ndarray:
        return self.probabilities(rows, seen, legal)[1]


@dataclass
class MatchScore:
    """How the first of two models did."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    total_return: float = 0.0

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """Draws count half."""
        return (self.wins + 0.5 * self.draws) / max(1, self.games)

    @property
    def mean_return(self) -> float:
        return self.total_return / max(1, self.games)


class _Other:
    """The opponent of a match, who also keeps the score."""

    def __init__(self, player: ModelPlayer, num_games: int, num_players: int) -> None:
        self._player, self._num_players = player, num_players
        self.score = MatchScore()
        self.played = np.zeros(num_games, np.int64)

    def act(self, moves: PendingMoves) -> np.ndarray:
        rows = moves.games * self._num_players + moves.players
        return self._player.act(rows, moves.observations, moves.legal)

    def game_over(self, games: np.ndarray, seats: np.ndarray, returns: np.ndarray) -> None:
        for player in range(self._num_players):
            self._player.begin(games * self._num_players + player)
        # One game from each seat, and no more where games are short: they would crowd out others.
        counted = self.played[games] < self._num_players
        self.played[games] += 1
        seats, returns = seats[counted], returns[counted]
        rows = np.arange(len(seats))
        own, others = returns[rows, seats], returns.copy()
        others[rows, seats] = -np.inf
        best = others.max(axis=1)
        self.score.wins += int(np.count_nonzero(own > best))
        self.score.losses += int(np.count_nonzero(own < best))
        self.score.draws += int(np.count_nonzero(own == best))
        self.score.total_return += float(own.sum())


def play_match(
    game: str,
    network: NetworkFactory,
    first: np.ndarray,
    second: np.ndarray,
    num_games: int,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> MatchScore:
    """About `num_games` games of `first` against `second`, as many from each seat."""
    options = dict(options or {})
    players = num_players(game, **options)
    games = make_game(game, max(1, num_games // players), seed, **options)
    rows = np.arange(games.num_games)
    own = ModelPlayer(network, first, len(rows), seed + 1)
    other = _Other(ModelPlayer(network, second, len(rows) * players, seed + 2), len(rows), players)
    env = LearningSeat(games, other)
    env.reset(seed=seed)
    while (other.played < players).any():
        legal = games.legal(env.seats) if games.spec.action_mask_size else None
        actions = own.act(rows, games.observe(env.seats), legal)
        _, _, terminated, truncated, _ = env.step(actions)
        own.begin(np.flatnonzero(terminated | truncated))
    env.close()
    return other.score
