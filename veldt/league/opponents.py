# SPDX-License-Identifier: Apache-2.0
"""Who plays the seats that do not learn in an actor's games, and how the games ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.games.seats import PendingMoves
from veldt.league.pool import ModelPool, ResidentModels
from veldt.league.state import DRAW, LEARNING, LOSS, SCRIPTED_MODELS, WIN, Matches
from veldt.networks import MASKED_LOGIT, Network, NetworkFactory, PolicyValueOutput
from veldt.ports import ExperienceSink, ParameterSource
from veldt.role import Part
from veldt.types import ACTION_MASK

Script = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Observations [N, O], legal actions [N, A], random generator -> probabilities [N, A]."""


@dataclass(eq=False)
class Opponents(Part):
    """Draws opponents as the manager says, and plays them: one forward pass for all games that face
    the same model. A game's opponent changes when the game is over and at no other time.

    An actor has a few opponents at once and exchanges one of them with each trajectory, so that the
    number of forward passes does not grow with the pool."""

    player: int
    """The learning player whose opponents these are."""
    num_learning: int
    capacity: int
    network: NetworkFactory
    matches: ParameterSource
    weights: list[ParameterSource]
    """Of all learning players."""
    results: ExperienceSink
    at_once: int
    resident_models: int
    noise: float = 0.0
    """Share of moves that are drawn from all that are allowed."""
    scripts: tuple[Script, ...] = ()
    """How the scripted players of the league play."""

    def open(self, context: NodeContext, num_games: int, num_players: int) -> None:
        self._random, self._pool = context.random("opponents"), ModelPool(context.run_dir)
        self._resident = ResidentModels(self.network, self.resident_models, self._pool.read)
        self._learning = ResidentModels(self.network, self.num_learning, self._pull)
        self._loads = context.telemetry.counter("models_loaded")
        self._num_players = num_players
        self._vector = np.empty(self.network.initial_vector().size, np.float32)
        size = self.num_learning * self.capacity + self.capacity + 2 * self.num_learning
        self._matches_vector, self._matches_version = np.empty(size, np.float32), -1
        self._matches: Matches
        self._drawn = np.full(self.at_once, -1)
        self._next_exchange = 0
        self._refresh_matches()
        self._drawn[:] = [self._draw() for _ in range(self.at_once)]
        self._opponent = self._drawn[np.arange(num_games) % self.at_once]
        """int64 [B]: the player that each game is against."""
        self._model = self._matches.models[self._opponent]
        """int64 [B]: and its model, when the game began."""
        network = self._learning(self.player)
        assert network.distribution is not None
        self._distribution = network.distribution
        self._states = network.initial_state(num_games * num_players)
        self._first = torch.ones(num_games * num_players, dtype=torch.bool)
        self._outcomes = np.zeros((self.capacity, 2, 3), np.int64)

    def refresh(self) -> None:
        """Called before each trajectory: newest matches and weights, and one new opponent."""
        self._refresh_matches()
        self._learning.forget()
        self._drawn[self._next_exchange] = self._draw()
        self._next_exchange = (self._next_exchange + 1) % self.at_once

    def act(self, moves: PendingMoves) -> np.ndarray:
        games, players, observations, legal = moves
        seen = dict(observations) if legal is None else {**observations, ACTION_MASK: legal}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in seen.items()}
        keys = np.where(self._model[games] == LEARNING, ~self._opponent[games], self._model[games])
        seats = torch.from_numpy(games * self._num_players + players)
        with torch.inference_mode():
            logits = self._logits(keys, tensors, seats).numpy()
        if self.noise:
            noisy = self._random.random(len(games)) < self.noise
            logits[noisy] = 0.0 if legal is None else np.where(legal[noisy], 0.0, MASKED_LOGIT)
        return self._distribution.env_action(self._distribution.sample(logits, self._random))

    def game_over(self, games: np.ndarray, seats: np.ndarray, returns: np.ndarray) -> None:
        """Count how `games` ended for the learning player, and draw who comes next."""
        rows = np.arange(len(games))
        own = returns[rows, seats]
        others = returns.copy()
        others[rows, seats] = -np.inf
        best = others.max(axis=1)
        outcome = np.where(own > best, WIN, np.where(own < best, LOSS, DRAW))
        opponents = self._opponent[games]
        # A player that has left the full pool meanwhile is not the one that has its number now.
        same = self._model[games] == self._matches.models[opponents]
        counted = (opponents[same], np.minimum(seats[same], 1), outcome[same])
        np.add.at(self._outcomes, counted, 1)
        self._opponent[games] = self._drawn[games % self.at_once]
        self._model[games] = self._matches.models[self._opponent[games]]
        for player in range(self._num_players if self._states else 0):
            self._first[torch.from_numpy(games * self._num_players + player)] = True

    def report(self, env_steps: int) -> bool:
        """Send what was counted since the last time; False while the manager is behind."""
        slot = self.results.reserve()
        if slot is None:
            return False
        slot["player"][0], slot["env_steps"][0] = self.player, env_steps
        slot["models"][:] = self._matches.models
        slot["outcomes"][:] = self._outcomes
        self.results.commit(slot)
        self._outcomes[:] = 0
        return True

    def _refresh_matches(self) -> None:
        newer = self.matches.pull(self._matches_vector, newer_than=self._matches_version)
        if newer is None:
            return
        matches = Matches.from_vector(self._matches_vector, self.num_learning, self.capacity)
        if self._matches_version >= 0:
            # Whoever has left the pool is played no more, and its results are nobody's.
            left = matches.models != self._matches.models
            self._outcomes[left] = 0
        self._matches, self._matches_version = matches, newer

    def _draw(self) -> int:
        chances = np.cumsum(self._matches.chances[self.player], dtype=np.float64)
        drawn = np.searchsorted(chances, self._random.random() * chances[-1], side="right")
        return int(min(drawn, self.capacity - 1))

    def _network_of(self, key: int) -> Network:
        if key < 0:
            return self._learning(~key)
        before = self._resident.loads
        network = self._resident(key)
        self._loads.add(self._resident.loads - before)
        return network

    def _pull(self, player: int) -> np.ndarray:
        self.weights[player].pull(self._vector, newer_than=-1)
        return self._vector

    def _logits(
        self, keys: np.ndarray, tensors: dict[str, torch.Tensor], seats: torch.Tensor
    ) -> torch.Tensor:
        """[N, ...]: each row's, of the model that its key names."""
        present = np.unique(keys).tolist()
        if len(present) == 1:
            return self._ask(present[0], tensors, seats)
        parts, places = [], []
        for key in present:
            rows = torch.from_numpy(np.flatnonzero(keys == key))
            seen = {name: tensor[rows] for name, tensor in tensors.items()}
            parts.append(self._ask(key, seen, seats[rows]))
            places.append(rows)
        joined = torch.cat(parts)
        return torch.empty_like(joined).index_copy_(0, torch.cat(places), joined)

    def _ask(self, key: int, seen: dict[str, torch.Tensor], seats: torch.Tensor) -> torch.Tensor:
        """Logits [N, ...]; the recurrent state is that of the seat."""
        if key <= SCRIPTED_MODELS:
            script, legal = self.scripts[SCRIPTED_MODELS - key], seen[ACTION_MASK].numpy()
            chances = script(seen["observation"].numpy(), legal, self._random)
            with np.errstate(divide="ignore"):
                logits = np.maximum(np.log(chances), MASKED_LOGIT).astype(np.float32)
            return torch.from_numpy(logits)
        network = self._network_of(key)
        if not self._states:
            outputs, _ = network.step(seen, (), self._first[: len(seats)])
        else:
            state = tuple(memory[seats] for memory in self._states)
            outputs, state = network.step(seen, state, self._first[seats])
            for memory, new in zip(self._states, state, strict=True):
                memory[seats] = new
            self._first[seats] = False
        assert isinstance(outputs, PolicyValueOutput)
        return outputs.logits
