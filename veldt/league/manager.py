# SPDX-License-Identifier: Apache-2.0
"""The league's manager: keeps the payoff, chooses opponents, orders freezing and resets.

It never touches weights. It writes on boards, which actors and learners read between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from veldt.context import NodeContext
from veldt.environments.lookup import imported_function
from veldt.errors import ConfigurationError
from veldt.league.matchmaking import elo, opponent_chances, ready_to_freeze, reset_after_freezing
from veldt.league.players import Opponents, Script
from veldt.league.state import (
    LEAGUE,
    LEARNING,
    MATCHES,
    LeagueOptions,
    Matches,
    MatchesSource,
    ModelPool,
    generation_board,
    results_layout,
)
from veldt.league.strength import LeagueOutcome, Measures
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource, receive_all
from veldt.problem import Problem
from veldt.role import Role
from veldt.telemetry.record import LEAGUE_LOG
from veldt.topology import Topology, numbered
from veldt.types import Batch, Parameters

_MAIN = 0


@dataclass(eq=False)
class LeagueManager(Role):
    """Orders one freezing at a time: the next when the learner has reported the model in the pool.

    Its whole state is on the board `kept`, from which a successor continues."""

    results: ExperienceSource
    kept: ParameterSink
    known: ParameterSource
    """The board of its state, to write and to read."""
    matches: ParameterSink
    generations: list[ParameterSource]
    """On which learning players report the model they have last put into the pool."""
    options: LeagueOptions
    measures: Measures

    def open(self, context: NodeContext) -> None:
        options, self._pool = self.options, ModelPool(context.run_dir)
        vector = options.first_state().to_vector(options.capacity)
        version = self.known.pull(vector, newer_than=-1)
        assert version is not None  # the board begins with the first state
        self._version, self._state = version, options.state_of(vector)
        self._random = context.random("league")
        self.measures.open(context)
        telemetry, kinds = context.telemetry, self.options.kinds
        self._dropped = telemetry.counter("dropped.results_of_players_who_left")
        self._frozen = telemetry.gauge("league.frozen")
        self._games = telemetry.gauge("league.games")
        self._lowest = telemetry.gauge("league.lowest_win_rate_against_own_past")
        self._elo = [telemetry.gauge(f"league.elo.{player}") for player in range(len(kinds))]
        self._show()

    def step(self) -> bool:
        received = receive_all(self.results, self._receive)
        if received:
            self._add_frozen_players()
            self._order_freezing()
            self._publish()
            self._show()
            self.measures.update(self._state)
        return received

    def _receive(self, batch: Batch) -> None:
        state, player = self._state, int(batch["player"][0])
        state.env_steps[player] += int(batch["env_steps"][0])
        outcomes, models = batch["outcomes"], batch["models"]
        for opponent in np.flatnonzero(outcomes.any(axis=(1, 2))).tolist():
            count = int(outcomes[opponent].sum())
            if opponent >= len(state.models) or models[opponent] != state.models[opponent]:
                self._dropped.add(count)
                continue
            state.games += count
            self._record(player, opponent, outcomes[opponent])

    def _record(self, player: int, opponent: int, by_seat: np.ndarray) -> None:
        """Add results [2, 3] of `player` in the first seat and in others: wins, draws, losses."""
        state = self._state
        for seat, (wins, draws, losses) in enumerate(by_seat.tolist()):
            if seat == 0:
                state.payoff.record(player, opponent, wins, draws, losses)
            else:
                state.payoff.record(opponent, player, losses, draws, wins)
        if player != opponent:
            # One step for all of them; ratings are shown and decide nothing.
            wins, draws, losses = by_seat.sum(axis=0).tolist()
            score = (wins + 0.5 * draws) / (wins + draws + losses)
            ratings = elo(state.elo[player], state.elo[opponent], score)
            state.elo[player], state.elo[opponent] = ratings

    def _add_frozen_players(self) -> None:
        """Add a player for each new model in the pool."""
        generation, state = np.zeros(3, np.float32), self._state
        for player, board in enumerate(self.generations):
            board.pull(generation, newer_than=-1)
            model = int(generation[0])
            if model > state.models.max(initial=0):
                number = state.add_frozen(player, model, self.options.capacity)
                self._log(player, number, model)

    def _is_waiting(self) -> bool:
        """Whether a model that was ordered is not in the pool yet."""
        newest = int(self._state.ordered.max())
        return newest > int(self._state.models.max(initial=0))

    def _order_freezing(self) -> None:
        state, period = self._state, self.options.freeze_env_steps
        for player, kind in enumerate(self.options.kinds):
            passed = int(state.env_steps[player] - state.frozen_at[player])
            due = passed >= period
            if self.options.matchmaking == "alphastar":
                due = ready_to_freeze(player, state.roster, state.payoff, passed, period)
            if not due or self._is_waiting():
                continue
            state.frozen_at[player] = state.env_steps[player]
            state.ordered[player] = state.ordered.max() + 1
            if reset_after_freezing(kind, self._random):
                state.resets[player] = state.ordered[player]

    def _chances(self) -> np.ndarray:
        """[L, C]: how often each learning player meets each player."""
        options, state = self.options, self._state
        table = np.zeros((state.num_learning, options.capacity))
        for player in range(state.num_learning):
            table[player, : len(state.models)] = opponent_chances(
                options.matchmaking, player, state.roster, state.payoff, options.pfsp_weighting
            )
        if options.matchmaking in ("uniform", "pfsp"):
            table *= 1.0 - options.self_play_share
            table[_MAIN, _MAIN] += options.self_play_share
        return table

    def _publish(self) -> None:
        # The state first, so that no order is forgotten that others may have read.
        self._version += 1
        vector = self._state.to_vector(self.options.capacity)
        self.kept.publish(Parameters(vector, self._version))
        matches = Matches.of(self._state, self._chances())
        self.matches.publish(Parameters(matches.to_vector(), self._version))

    def _show(self) -> None:
        state = self._state
        self._frozen.set(state.num_frozen)
        self._games.set(state.games)
        for gauge, rating in zip(self._elo, state.elo, strict=False):
            gauge.set(float(rating))
        lowest = state.lowest_against_own_past()
        if lowest is not None:
            self._lowest.set(lowest)

    def _log(self, player: int, number: int, model: int) -> None:
        """Write the family tree and the present payoff, one line for each freezing."""
        state = self._state
        entry = {
            "env_steps": int(state.env_steps.sum()),
            "player": number,
            "model": model,
            "kind": state.roster.kinds[number],
            "parent": player,
            "reset": bool(state.resets[player] == model),
            "elo": [round(float(rating), 1) for rating in state.elo],
            "win_rates": [np.round(rates, 3).tolist() for rates in state.win_rates()],
        }
        self._pool.append(LEAGUE_LOG, entry)


class League:
    """Learning players with weights of their own, and the boards between them and the manager."""

    def __init__(self, topology: Topology, problem: Problem, options: LeagueOptions) -> None:
        _check(problem)
        self._options, self._game = options, problem.environment.name
        self._network = network = topology.network
        self._scripts: tuple[Script, ...] = tuple(
            imported_function(name, "scripted opponent") for name in options.scripted_opponents
        )
        self.size, players = len(options.kinds), range(len(options.kinds))
        self.networks = [replace(network, seed=network.seed + player) for player in players]
        self.weights = [
            topology.board(name, first)
            for name, first in zip(numbered("weights", self.size), self.networks, strict=True)
        ]
        state, capacity = options.first_state(), options.capacity
        self._state = topology.board(LEAGUE, state.to_vector(capacity))
        first = Matches(
            np.eye(self.size, capacity), np.full(capacity, LEARNING), state.ordered, state.resets
        )
        self._matches = topology.board(MATCHES, first.to_vector())
        names = (generation_board(player) for player in players)
        self.generations = [topology.board(name, np.zeros(3, np.float32)) for name in names]
        messages = 4 * problem.num_actors
        self._results = topology.queue("results", results_layout(capacity), messages)
        topology.outcome = LeagueOutcome(self._game, network, options)

    def opponents(self, player: int) -> Opponents:
        """The opponents of an actor that plays for a learning player."""
        return Opponents(
            player,
            self._network,
            self.matches_source(),
            [board.source() for board in self.weights],
            self._results.sink,
            self._options,
            self._scripts,
        )

    def manager(self) -> LeagueManager:
        weights, every = self.weights[0].source(), self._options.measure_env_steps
        return LeagueManager(
            self._results.source(),
            self._state.sink,
            self._state.source(),
            self._matches.sink,
            [board.source() for board in self.generations],
            self._options,
            Measures(self._game, self._network, weights, every),
        )

    def matches_source(self) -> MatchesSource:
        return MatchesSource(self._matches.source(), self.size, self._options.capacity)


def _check(problem: Problem) -> None:
    if not problem.environment.is_game:
        raise ConfigurationError(
            f"a league plays games of two players or more, but {problem.environment.name} has one;"
            " use veldt:kuhn, another veldt:... or pettingzoo:... game, or train it with impala"
        )
    if problem.shape.last_action_and_reward:
        raise ConfigurationError(
            "opponents of a league do not receive rewards; leave last_action_and_reward out"
        )
