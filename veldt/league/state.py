# SPDX-License-Identifier: Apache-2.0
"""What a league's manager knows, and what it tells the others, each as one vector on a board.

The boards outlive every process, so that a manager that dies loses no result, and a checkpoint of
the boards is a checkpoint of the league.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.league.matchmaking import ELO_START, Payoff, Roster
from veldt.types import Field, Layout

LEAGUE = "league"
"""Name of the board with the state; a topology without it has no league."""
MATCHES = "matches"
LEARNING = -1
"""In the place of a model's number: a player that is not frozen."""
SCRIPTED_MODELS = -1000
"""In the same place, this number and those below: players that follow a rule and have no model."""
WIN, DRAW, LOSS = range(3)


def generation_board(player: int) -> str:
    """Name of the board on which a learning player says what it has frozen itself as."""
    return f"generation-{player}"


@dataclass
class LeagueState:
    """Arrays have one entry per learning player (L), or per player (M) of at most `capacity`."""

    roster: Roster
    payoff: Payoff
    elo: np.ndarray
    """float64 [M]"""
    models: np.ndarray
    """int64 [M]: the model each frozen player is; LEARNING for the others."""
    env_steps: np.ndarray
    frozen_at: np.ndarray
    """int64 [L]: steps so far, and at the last freezing."""
    ordered: np.ndarray
    """int64 [L]: the model it last had to freeze itself as; 0: none yet."""
    resets: np.ndarray
    """int64 [L]: the model after which it last had to begin anew; 0: none."""
    games: int = 0

    @staticmethod
    def start(kinds: tuple[str, ...], decay: float, num_scripted: int = 0) -> LeagueState:
        roster, payoff = Roster(), Payoff(decay)
        for kind in kinds:
            roster.add_learning(kind)
        for _ in range(num_scripted):
            roster.add_scripted()
        for _ in roster.kinds:
            payoff.add_player()
        steps, frozen_at, ordered, resets = np.zeros((4, len(kinds)), np.int64)
        elo = np.full(len(roster.kinds), ELO_START)
        scripted = SCRIPTED_MODELS - np.arange(num_scripted)
        models = np.append(np.full(len(kinds), LEARNING), scripted)
        return LeagueState(roster, payoff, elo, models, steps, frozen_at, ordered, resets)

    @property
    def num_learning(self) -> int:
        return len(self.env_steps)

    @property
    def num_frozen(self) -> int:
        """Models in the pool."""
        return int(np.count_nonzero(self.models > 0))

    def add_frozen(self, parent: int, model: int, capacity: int) -> int:
        """The pool has one more model; its number as a player. In a full pool the oldest leaves."""
        number = len(self.models)
        if number < capacity:
            self.roster.add_frozen(parent)
            self.payoff.add_player()
            self.elo = np.append(self.elo, self.elo[parent])
            self.models = np.append(self.models, model)
            return number
        pool = np.flatnonzero(self.models > 0)
        number = int(pool[self.models[pool].argmin()])
        self.roster.kinds[number] = self.roster.kinds[parent]
        self.roster.parents[number] = parent
        self.payoff.forget(number)
        self.elo[number], self.models[number] = self.elo[parent], model
        return number

    def to_vector(self, capacity: int) -> np.ndarray:
        """float64 in the bits of twice as many float32, which is what boards carry."""
        roster = self.roster.state()
        columns = [self.elo, self.models, *roster.values()]
        tables = [self.payoff.games, self.payoff.points, self.payoff.seated_first]
        learning = (self.env_steps, self.frozen_at, self.ordered, self.resets)
        players = len(self.models)
        parts = [np.array([players, self.games], np.float64), *learning]
        parts += [_padded(column, (capacity,)) for column in columns]
        parts += [_padded(table, (capacity, capacity)) for table in tables]
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts]).view("float32")

    @staticmethod
    def from_vector(
        vector: np.ndarray, num_learning: int, capacity: int, decay: float
    ) -> LeagueState:
        numbers = vector.view(np.float64)
        players, games = int(numbers[0]), int(numbers[1])
        end = 2 + 4 * num_learning
        steps, *rest = numbers[2:end].reshape(4, num_learning).astype(np.int64)
        columns = numbers[end : end + 5 * capacity].reshape(5, capacity)[:, :players].copy()
        tables = numbers[end + 5 * capacity :].reshape(3, capacity, capacity)
        tables = tables[:, :players, :players].copy()
        roster = Roster()
        whole = columns[1:].astype(np.int64)
        roster.load_state(dict(zip(("kinds", "parents", "frozen"), whole[1:], strict=True)))
        payoff = Payoff(decay, tables[0], tables[1], tables[2].astype(np.int64))
        frozen_at, ordered, resets = rest
        return LeagueState(
            roster, payoff, columns[0], whole[0], steps, frozen_at, ordered, resets, games
        )


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    room = np.zeros(shape)
    room[tuple(slice(size) for size in array.shape)] = array
    return room


@dataclass
class Matches:
    """What actors and learners need to know: whom to play, and when to freeze."""

    chances: np.ndarray
    """float32 [L, C]: how often each learning player is to meet each player."""
    models: np.ndarray
    """int64 [C]: the model that each player is; LEARNING for those that are not frozen."""
    ordered: np.ndarray
    resets: np.ndarray
    """int64 [L], as in LeagueState."""

    def to_vector(self) -> np.ndarray:
        """float32, exact for numbers of models below 2^24."""
        parts = (self.chances, self.models, self.ordered, self.resets)
        return np.concatenate([part.ravel().astype(np.float32) for part in parts])

    @staticmethod
    def from_vector(vector: np.ndarray, num_learning: int, capacity: int) -> Matches:
        table = num_learning * capacity
        whole = vector[table:].astype(np.int64)
        return Matches(
            vector[:table].reshape(num_learning, capacity).copy(),
            whole[:capacity],
            whole[capacity : capacity + num_learning],
            whole[capacity + num_learning :],
        )


def results_layout(capacity: int) -> Layout:
    """A message of an actor to the manager: how its player's games ended, and its steps. Results
    [C, 2, 3] are by opponent, seat (first or not) and outcome; `models` [C] says who they were."""
    return Layout.of(
        player=Field((1,), "int64"),
        env_steps=Field((1,), "int64"),
        models=Field((capacity,), "int64"),
        outcomes=Field((capacity, 2, 3), "int64"),
    )
