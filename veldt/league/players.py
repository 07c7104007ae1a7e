# SPDX-License-Identifier: Apache-2.0
"""Actors and learners of a league: one seat of each game learns, opponents play the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.environments import Step
from veldt.games import make_game
from veldt.games.seats import LearningSeat, PendingMoves
from veldt.league.state import (
    DRAW,
    LEARNING,
    LOSS,
    SCRIPTED_MODELS,
    WIN,
    LeagueOptions,
    MatchesSource,
    ModelPool,
    own_and_best,
)
from veldt.networks import MASKED_LOGIT, FlatParameters, Network, NetworkFactory, PolicyValueOutput
from veldt.optimizers import Schedule
from veldt.ports import ExperienceSink, ParameterSink, ParameterSource
from veldt.role import Part
from veldt.roles.actor import Actor, EnvironmentGroup
from veldt.roles.learner import Learner
from veldt.roles.trajectory_sources import NewerRows
from veldt.types import ACTION_MASK, Parameters

Script = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Observations [N, O], legal actions [N, A], random generator -> probabilities [N, A]."""


class ResidentModels:
    """Networks by key, at most `most` of them; a missing one replaces the least recently used."""

    def __init__(
        self, factory: NetworkFactory, most: int, load: Callable[[int], np.ndarray]
    ) -> None:
        self._factory, self._most, self._load = factory, most, load
        self._models: OrderedDict[int, tuple[Network, FlatParameters]] = OrderedDict()
        self._idle: list[tuple[Network, FlatParameters]] = []

    def __call__(self, key: int) -> Network:
        if key in self._models:
            self._models.move_to_end(key)
            return self._models[key][0]
        if self._idle:
            entry = self._idle.pop()
        elif len(self._models) < self._most:
            network = self._factory.make().eval()
            entry = (network, FlatParameters(network))
        else:
            _, entry = self._models.popitem(last=False)
        entry[1].load(self._load(key))
        self._models[key] = entry
        return entry[0]

    def forget(self) -> None:
        """Load each model again when it is next used, because its weights may have changed."""
        self._idle += self._models.values()
        self._models.clear()


@dataclass(eq=False)
class Opponents(Part):
    """Draws opponents by the manager's chances and plays them, with one forward pass for all games
    against the same model. A game's opponent changes only when the game is over.

    An actor has a few opponents at once and exchanges one of them with each trajectory, so that the
    number of forward passes does not grow with the pool."""

    player: int
    """The learning player whose opponents these are."""
    network: NetworkFactory
    matches: MatchesSource
    weights: list[ParameterSource]
    """Of all learning players."""
    results: ExperienceSink
    options: LeagueOptions
    scripts: tuple[Script, ...] = ()
    """The league's scripted players."""

    def open(self, context: NodeContext, num_games: int, num_players: int) -> None:
        self._at_once, self._noise = self.options.opponents_per_actor, self.options.opponent_noise
        self._random, self._pool = context.random("opponents"), ModelPool(context.run_dir)
        self._resident = ResidentModels(self.network, self.options.cached_models, self._read)
        self._learning = ResidentModels(self.network, len(self.weights), self._pull)
        self._loads = context.telemetry.counter("models_loaded")
        self._num_players = num_players
        self._vector = np.empty(self.network.initial_vector().size, np.float32)
        self.matches.open()
        matches = self.matches.newer()
        assert matches is not None  # the board begins with the first matches
        self._matches = matches
        self._next_exchange = 0
        self._drawn = np.array([self._draw() for _ in range(self._at_once)])
        self._opponent = self._drawn[np.arange(num_games) % self._at_once]
        """int64 [B]: the opponent of each game."""
        self._model = self._matches.models[self._opponent]
        """int64 [B]: its model when the game began."""
        network = self._learning(self.player)
        assert network.distribution is not None
        self._distribution = network.distribution
        self._states = network.initial_state(num_games * num_players)
        self._first = torch.ones(num_games * num_players, dtype=torch.bool)
        self._outcomes = np.zeros((self.matches.capacity, 2, 3), np.int64)

    def refresh(self) -> None:
        """Read the newest matches and weights and draw one new opponent, once per trajectory."""
        newer = self.matches.newer()
        if newer is not None:
            # Models removed from the pool are not matched again; their results are discarded.
            self._outcomes[newer.models != self._matches.models] = 0
            self._matches = newer
        self._learning.forget()
        self._drawn[self._next_exchange] = self._draw()
        self._next_exchange = (self._next_exchange + 1) % self._at_once

    def act(self, moves: PendingMoves) -> np.ndarray:
        games, players, observations, legal = moves
        seen = dict(observations) if legal is None else {**observations, ACTION_MASK: legal}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in seen.items()}
        keys = np.where(self._model[games] == LEARNING, ~self._opponent[games], self._model[games])
        seats = torch.from_numpy(games * self._num_players + players)
        with torch.inference_mode():
            logits = self._logits(keys, tensors, seats).numpy()
        if self._noise:
            noisy = self._random.random(len(games)) < self._noise
            logits[noisy] = 0.0 if legal is None else np.where(legal[noisy], 0.0, MASKED_LOGIT)
        return self._distribution.env_action(self._distribution.sample(logits, self._random))

    def game_over(self, games: np.ndarray, seats: np.ndarray, returns: np.ndarray) -> None:
        """Count how `games` ended for the learning player, and choose the next opponents."""
        own, best = own_and_best(seats, returns)
        outcome = np.where(own > best, WIN, np.where(own < best, LOSS, DRAW))
        opponents = self._opponent[games]
        # The number of a model that has left the full pool now belongs to another one.
        same = self._model[games] == self._matches.models[opponents]
        counted = (opponents[same], np.minimum(seats[same], 1), outcome[same])
        np.add.at(self._outcomes, counted, 1)
        self._opponent[games] = self._drawn[games % self._at_once]
        self._model[games] = self._matches.models[self._opponent[games]]
        for player in range(self._num_players if self._states else 0):
            self._first[torch.from_numpy(games * self._num_players + player)] = True

    def report(self, env_steps: int) -> bool:
        """Send the results since the last message; False while the manager's queue is full."""
        slot = self.results.reserve()
        if slot is None:
            return False
        slot["player"][0], slot["env_steps"][0] = self.player, env_steps
        slot["models"][:] = self._matches.models
        slot["outcomes"][:] = self._outcomes
        self.results.commit(slot)
        self._outcomes[:] = 0
        return True

    def _draw(self) -> int:
        chances = np.cumsum(self._matches.chances[self.player], dtype=np.float64)
        drawn = np.searchsorted(chances, self._random.random() * chances[-1], side="right")
        return int(min(drawn, len(chances) - 1))

    def _read(self, model: int) -> np.ndarray:
        self._loads.add()
        return self._pool.read(model)

    def _pull(self, player: int) -> np.ndarray:
        self.weights[player].pull(self._vector, newer_than=-1)
        return self._vector

    def _logits(
        self, keys: np.ndarray, tensors: dict[str, torch.Tensor], seats: torch.Tensor
    ) -> torch.Tensor:
        """Logits [N, ...] of the model that each row's key names."""
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
        network = self._learning(~key) if key < 0 else self._resident(key)
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


@dataclass(eq=False, kw_only=True)
class LeagueActor(Actor):
    """Every row is a decision of the learning player, whose seat changes from game to game. Results
    are sent to the manager once per trajectory."""

    opponents: Opponents

    def _make_groups(self, context: NodeContext) -> list[EnvironmentGroup]:
        factory, width = self.environments.factory, self.environments.width
        seed = context.derived_seed("environment-0")
        games = make_game(factory.name, width, **dict(factory.options))
        self.opponents.open(context, width, games.spec.num_players)
        environment = factory.wrapping(LearningSeat(games, self.opponents), seed)
        environment.reset()
        self._unreported_steps = 0
        return [EnvironmentGroup(0, environment)]

    def _begin(self, group: EnvironmentGroup) -> bool:
        if not super()._begin(group):
            return False
        self.opponents.refresh()
        return True

    def _count(self, group: EnvironmentGroup, step: Step) -> None:
        super()._count(group, step)
        self._unreported_steps += step.env_steps

    def _finish(self, group: EnvironmentGroup) -> None:
        super()._finish(group)
        if self.opponents.report(self._unreported_steps):
            self._unreported_steps = 0


@dataclass(frozen=True)
class EntropySchedule:
    """Decreases exponentially from `start` to `end` by `schedule`: much entropy keeps self-play
    from cycling, and little lets the policy come close to an equilibrium."""

    start: float
    end: float
    schedule: Schedule

    def __call__(self, env_steps: float) -> float:
        passed = self.schedule.passed(env_steps)
        return float(self.start * (self.end / self.start) ** passed)


@dataclass(eq=False, kw_only=True)
class LeagueLearner(Learner):
    """Follows the manager's orders between two updates. The model is on disk before the weights
    change: an exploiter that was reset first would leave its initial weights in the pool."""

    player: int
    matches: MatchesSource
    generation: ParameterSink
    known_generation: ParameterSource
    """A board with the model it last froze itself as, the one it was last reset after, and the
    first version of its weights since; a restarted learner continues from there."""
    entropy: EntropySchedule | None = None

    def open(self, context: NodeContext) -> None:
        super().open(context)
        self._pool = ModelPool(context.run_dir)
        self.matches.open()
        generation = np.zeros(3, np.float32)
        version = self.known_generation.pull(generation, newer_than=-1)
        self._generation_version = 0 if version is None else version
        self._frozen_as, self._reset_after, first_version = (int(number) for number in generation)
        self._newer_rows = NewerRows(context, self.source, first_version)
        self.source = self._newer_rows
        self._freezes = context.telemetry.counter("league.freezes")
        self._resets = context.telemetry.counter("league.resets")

    def scheduled(self) -> list[str]:
        entropy = [] if self.entropy is None else ["entropy coefficient"]
        return [*super().scheduled(), *entropy]

    def _begin(self) -> bool:
        newer = self.matches.newer()
        if newer is not None:
            self._follow(int(newer.ordered[self.player]), int(newer.resets[self.player]))
        if self.entropy is not None:
            self.objective.adjust_entropy(self.entropy(self._trained.value))
        return super()._begin()

    def _follow(self, model: int, reset: int) -> None:
        if model > self._frozen_as:
            self._pool.write(model, self._flat.vector.detach().cpu().numpy())
            self._frozen_as = model
            self._freezes.add()
            self._publish_generation()
        if reset > self._reset_after:
            self._reset()
            self._reset_after = reset
            self._resets.add()
            self._publish_generation()

    def _reset(self) -> None:
        """Restore the initial weights and clear the optimizer's state."""
        self._flat.load(self.network.initial_vector())
        blank = {name: np.zeros_like(array) for name, array in self.gradients.state().items()}
        self.gradients.load_state(blank)
        self._updated(self._version + 1)
        # Rows that the old weights acted are not learned from.
        self._newer_rows.first_version = self._version

    def _publish_generation(self) -> None:
        self._generation_version += 1
        numbers = np.array(
            (self._frozen_as, self._reset_after, self._newer_rows.first_version), np.float32
        )
        self.generation.publish(Parameters(numbers, self._generation_version))
