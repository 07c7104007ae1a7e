# SPDX-License-Identifier: Apache-2.0
"""A league's options, its manager's state, the messages between its nodes, and its model files.

State and messages are vectors on boards. Boards outlive every process, so that a manager that dies
loses no result, and a checkpoint of the boards is a checkpoint of the league.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from veldt.errors import ConfigurationError
from veldt.files import write_atomically
from veldt.league.matchmaking import (
    ELO_START,
    KINDS,
    LEAGUE_EXPLOITER,
    MAIN,
    MAIN_EXPLOITER,
    SCRIPTED,
    Payoff,
    Roster,
)
from veldt.options.checked import Bounds, Count, Options
from veldt.options.groups import LEAGUE_OPTIONS
from veldt.ports import ParameterSource
from veldt.role import Part
from veldt.telemetry.record import LEAGUE_FOLDER
from veldt.types import Field, Layout

LEAGUE = "league"
"""Name of the board with the state."""
MATCHES = "matches"
LEARNING = -1
"""Instead of a model's number: a player that is not frozen."""
SCRIPTED_MODELS = -1000
"""In the same place, this number and those below: players that follow a rule and have no model."""
WIN, DRAW, LOSS = range(3)
BEST_MODEL, BEST_FACTS = "best-model.npy", "best-model.json"
_ALPHASTAR_EXPLOITERS = (1, 2)  # main exploiters and league exploiters with one main player
Exploiters = Annotated[int, Bounds(0, 16)]


@dataclass(frozen=True)
class LeagueOptions(Options):
    """Who learns, against whom, and when a learning player is frozen into the pool."""

    matchmaking: Literal["latest", "uniform", "pfsp", "alphastar"] = "pfsp"
    """Opponents: latest (itself), uniform or pfsp over the frozen, or alphastar's rules by kind."""
    pfsp_weighting: Annotated[
        Literal["squared", "variance", "linear", "linear_capped"], LEAGUE_OPTIONS
    ] = "squared"
    """What pfsp prefers, as a function of the win rate; squared: those that are hard to beat."""
    self_play_share: Annotated[float, Bounds(0, 1), LEAGUE_OPTIONS] = 0.8
    """Share of games against itself (uniform and pfsp)."""
    main_exploiters: Annotated[Exploiters | None, LEAGUE_OPTIONS] = None
    """Learning players that only play the main one; none: 1 with alphastar, else 0."""
    league_exploiters: Annotated[Exploiters | None, LEAGUE_OPTIONS] = None
    """Learning players that play all frozen players; none: 2 with alphastar, else 0."""
    freeze_env_steps: Annotated[Count, LEAGUE_OPTIONS] = 150_000
    """Env steps of a player until it is frozen; with alphastar twice as many at the latest."""
    max_frozen: Annotated[int, Bounds(1, 1000), LEAGUE_OPTIONS] = 32
    """Frozen players in the pool; when it is full, the oldest one leaves."""
    payoff_decay: Annotated[float, Bounds(0, 1, above=True), LEAGUE_OPTIONS] = 0.99
    """Factor by which each new result of a pair multiplies the weight of its older ones."""
    opponents_per_actor: Annotated[int, Bounds(1, 1000), LEAGUE_OPTIONS] = 2
    """Opponents that an actor plays at the same time; each is one more forward pass per row."""
    cached_models: Annotated[int, Bounds(1, 1000), LEAGUE_OPTIONS] = 16
    """Models that an actor keeps in memory; those not played for longest are read again later."""
    opponent_noise: Annotated[float, Bounds(0, 1), LEAGUE_OPTIONS] = 0.0
    """Share of random moves of the opponents, so that a nearly deterministic policy still sees
    what follows from mistakes."""
    scripted_opponents: tuple[str, ...] = ()
    """Functions (module:function) that play by a rule, in the pool from the start: observations,
    legal actions and a random generator in, probabilities out."""
    measure_env_steps: Annotated[Count, LEAGUE_OPTIONS] = 250_000
    """Env steps of the main player between two measurements of its strength."""

    def __post_init__(self) -> None:
        super().__post_init__()
        exploiters = (self.main_exploiters or 0) + (self.league_exploiters or 0)
        if exploiters and self.matchmaking != "alphastar":
            raise ConfigurationError(
                f"exploiters follow the rules of alphastar, not of {self.matchmaking}; use"
                " --matchmaking alphastar, or no exploiters"
            )
        if self.cached_models < self.opponents_per_actor:
            raise ConfigurationError(
                f"{self.opponents_per_actor} opponents at once do not fit into"
                f" {self.cached_models} cached models; raise --league-options cached_models"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each learning player; the main one is the first."""
        own = _ALPHASTAR_EXPLOITERS if self.matchmaking == "alphastar" else (0, 0)
        given = (self.main_exploiters, self.league_exploiters)
        hunters, roamers = (n if g is None else g for n, g in zip(own, given, strict=True))
        return (MAIN, *[MAIN_EXPLOITER] * hunters, *[LEAGUE_EXPLOITER] * roamers)

    @property
    def capacity(self) -> int:
        """Largest number of players."""
        return len(self.kinds) + len(self.scripted_opponents) + self.max_frozen

    def first_state(self) -> LeagueState:
        """The manager's state before the first game."""
        return LeagueState.start(self.kinds, self.payoff_decay, len(self.scripted_opponents))

    def state_of(self, vector: np.ndarray) -> LeagueState:
        """The state in a vector of the board LEAGUE, also of a checkpoint."""
        return LeagueState.from_vector(
            vector.copy(), len(self.kinds), self.capacity, self.payoff_decay
        )


def generation_board(player: int) -> str:
    """Name of the board on which a learning player reports what it has frozen itself as."""
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
    """int64 [L]: the model it was last ordered to freeze itself as; 0: none yet."""
    resets: np.ndarray
    """int64 [L]: the model after which it was last ordered to reset its weights; 0: none."""
    games: int = 0

    @staticmethod
    def start(kinds: tuple[str, ...], decay: float, num_scripted: int = 0) -> LeagueState:
        roster, payoff = Roster(), Payoff(decay)
        for kind in (*kinds, *[SCRIPTED] * num_scripted):
            roster.add(kind, frozen=kind == SCRIPTED)
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
        """Add a model of the pool; returns its number as a player. A full pool drops the oldest."""
        number = len(self.models)
        if number < capacity:
            self.roster.add(self.roster.kinds[parent], parent, frozen=True)
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

    def past_models(self) -> list[int]:
        """The frozen models of the main player."""
        return sorted(self.models[self.roster.snapshots_of(0)].tolist())

    def win_rates(self) -> np.ndarray:
        """[M, M]: the win rate of row against column; 1/2 before any game."""
        return np.stack([self.payoff.win_rates(player) for player in range(len(self.models))])

    def lowest_against_own_past(self) -> float | None:
        """The main player's lowest win rate against its own snapshots, of those it has met."""
        past = self.roster.snapshots_of(0)
        met = past[self.payoff.games[0, past] > 0]
        return float(self.payoff.win_rates(0)[met].min()) if len(met) else None

    def to_vector(self, capacity: int) -> np.ndarray:
        """float64 in the bits of twice as many float32, which is what boards carry."""
        kinds = np.array([KINDS.index(kind) for kind in self.roster.kinds])
        columns = [self.elo, self.models, kinds, np.array(self.roster.parents)]
        columns.append(np.array(self.roster.frozen))
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
        steps, frozen_at, *orders = numbers[2:end].reshape(4, num_learning).astype(np.int64)
        columns = numbers[end : end + 5 * capacity].reshape(5, capacity)[:, :players].copy()
        tables = numbers[end + 5 * capacity :].reshape(3, capacity, capacity)
        tables = tables[:, :players, :players].copy()
        models, kinds, parents, frozen = columns[1:].astype(np.int64)
        roster = Roster([KINDS[n] for n in kinds], parents.tolist(), frozen.astype(bool).tolist())
        payoff = Payoff(decay, tables[0], tables[1], tables[2].astype(np.int64))
        return LeagueState(
            roster, payoff, columns[0], models, steps, frozen_at, orders[0], orders[1], games
        )


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    padded = np.zeros(shape)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


@dataclass
class Matches:
    """The manager's message to actors and learners: whom to play, and when to freeze."""

    chances: np.ndarray
    """float32 [L, C]: how often each learning player meets each player."""
    models: np.ndarray
    """int64 [C]: the model that each player is; LEARNING for those that are not frozen."""
    ordered: np.ndarray
    resets: np.ndarray
    """int64 [L], as in LeagueState."""

    @staticmethod
    def of(state: LeagueState, chances: np.ndarray) -> Matches:
        models = np.full(chances.shape[1], LEARNING)
        models[: len(state.models)] = state.models
        return Matches(chances, models, state.ordered, state.resets)

    def to_vector(self) -> np.ndarray:
        """float32, exact for numbers of models below 2^24."""
        parts = (self.chances, self.models, self.ordered, self.resets)
        return np.concatenate([part.ravel().astype(np.float32) for part in parts])

    @staticmethod
    def from_vector(vector: np.ndarray, num_learning: int, capacity: int) -> Matches:
        ends = np.cumsum((num_learning * capacity, capacity, num_learning))
        chances, *whole = np.split(vector, ends)
        table = chances.reshape(num_learning, capacity).copy()
        return Matches(table, *(part.astype(np.int64) for part in whole))


@dataclass(eq=False)
class MatchesSource(Part):
    """Reads the newest matches from their board."""

    board: ParameterSource
    num_learning: int
    capacity: int

    def open(self) -> None:
        size = self.num_learning * self.capacity + self.capacity + 2 * self.num_learning
        self._vector, self._version = np.empty(size, np.float32), -1

    def newer(self) -> Matches | None:
        """The newest matches; None if they were returned before."""
        version = self.board.pull(self._vector, newer_than=self._version)
        if version is None:
            return None
        self._version = version
        return Matches.from_vector(self._vector, self.num_learning, self.capacity)


def own_and_best(seats: np.ndarray, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The returns [N] of the players in `seats`, and the best of the others, from all [N, P]."""
    rows = np.arange(len(seats))
    own, others = returns[rows, seats], returns.copy()
    others[rows, seats] = -np.inf
    return own, others.max(axis=1)


def results_layout(capacity: int) -> Layout:
    """A message of an actor to the manager: how its player's games ended, and its steps. Results
    [C, 2, 3] are by opponent, seat (first or not) and outcome; `models` [C]: the opponents then."""
    return Layout.of(
        player=Field((1,), "int64"),
        env_steps=Field((1,), "int64"),
        models=Field((capacity,), "int64"),
        outcomes=Field((capacity, 2, 3), "int64"),
    )


class ModelPool:
    """RUN_DIR/league/model-<number>.npy, flat float32 vectors. A model is on disk before its number
    is published, and never changes, so that no death of a process can lose it."""

    def __init__(self, run_dir: Path | None) -> None:
        if run_dir is None:
            raise RuntimeError("a league keeps its models in the run's directory; there is none")
        self.folder = run_dir / LEAGUE_FOLDER

    def path(self, number: int) -> Path:
        return self.folder / f"model-{number:06d}.npy"

    def write(self, number: int, vector: np.ndarray) -> None:
        self._write(self.path(number), vector)

    def read(self, number: int) -> np.ndarray:
        try:
            vector: np.ndarray = np.load(self.path(number), allow_pickle=False)
        except OSError as error:
            raise RuntimeError(
                f"the frozen model {self.path(number)} cannot be read; on several machines RUN_DIR"
                " must be on a file system that all of them share"
            ) from error
        return vector

    def write_best(self, vector: np.ndarray, facts: Mapping[str, float]) -> None:
        """The main player at its best measure, with what was measured. Facts are written last, so
        that a reader finds a model that is at least as good."""
        self._write(self.folder / BEST_MODEL, vector)
        write_atomically(self.folder / BEST_FACTS, json.dumps(dict(facts)) + "\n")

    def read_best(self) -> tuple[np.ndarray, dict[str, float]] | None:
        """None if nothing was measured, or what was written cannot be read."""
        try:
            vector: np.ndarray = np.load(self.folder / BEST_MODEL, allow_pickle=False)
            facts = json.loads((self.folder / BEST_FACTS).read_text(encoding="utf-8"))
            return vector, {name: float(value) for name, value in facts.items()}
        except (OSError, ValueError, AttributeError):
            return None

    def append(self, log: str, entry: Mapping[str, object]) -> None:
        """Add a line to a log in the pool's folder."""
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _write(self, path: Path, vector: np.ndarray) -> None:
        self.folder.mkdir(exist_ok=True)
        content = io.BytesIO()
        np.save(content, np.asarray(vector, np.float32), allow_pickle=False)
        write_atomically(path, content.getvalue(), durable=True)
