# SPDX-License-Identifier: Apache-2.0
"""The league's manager: keeps the payoff, says who plays whom, has players frozen and reset.

It never touches weights. It writes on boards; actors and learners read them when they can.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.league.matchmaking import branches, elo, ready_to_freeze, reset_after_freezing
from veldt.league.measures import Measures
from veldt.league.options import LeagueOptions
from veldt.league.state import LEARNING, LeagueState, Matches
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource, receive_all
from veldt.role import Role
from veldt.telemetry.record import LEAGUE_FOLDER, LEAGUE_LOG
from veldt.types import Batch, Parameters

_MAIN = 0


@dataclass(eq=False)
class LeagueManager(Role):
    """One freezing at a time: the next is ordered when the learner has said that the model is in
    the pool. All it knows lies on `kept`, also after it dies."""

    results: ExperienceSource
    kept: ParameterSink
    known: ParameterSource
    """The state, where it writes it and where it finds it again."""
    matches: ParameterSink
    generations: list[ParameterSource]
    """On which learning players say which model they have last put into the pool."""
    options: LeagueOptions
    measures: Measures

    def open(self, context: NodeContext) -> None:
        options, self._context = self.options, context
        self._num_learning, self._capacity = len(options.kinds), options.capacity
        empty = options.first_state().to_vector(self._capacity)
        version = self.known.pull(empty, newer_than=-1)
        assert version is not None  # the board begins with the first state
        self._version = version
        self._state = LeagueState.from_vector(
            empty, self._num_learning, self._capacity, options.payoff_decay
        )
        self._random = context.random("league")
        self.measures.open(context)
        self._count(context)
        self._show()

    def _count(self, context: NodeContext) -> None:
        telemetry, kinds = context.telemetry, self.options.kinds
        self._dropped = telemetry.counter("dropped.results_of_players_who_left")
        self._frozen = telemetry.gauge("league.frozen")
        self._games = telemetry.gauge("league.games")
        self._lowest = telemetry.gauge("league.lowest_win_rate_against_own_past")
        self._elo = [telemetry.gauge(f"league.elo.{player}") for player in range(len(kinds))]

    def step(self) -> bool:
        received = receive_all(self.results, self._receive)
        if received:
            self._welcome_the_frozen()
            self._freeze_who_is_due()
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
        """Results [2, 3] of `player` in the first seat and in others: wins, draws, losses."""
        state = self._state
        for seat, (wins, draws, losses) in enumerate(by_seat.tolist()):
            if seat == 0:
                state.payoff.record_many(player, opponent, wins, draws, losses)
            else:
                state.payoff.record_many(opponent, player, losses, draws, wins)
        if player != opponent:
            # One step for all of them: a rating for people to look at, which steers nothing.
            wins, draws, losses = by_seat.sum(axis=0).tolist()
            score = (wins + 0.5 * draws) / (wins + draws + losses)
            ratings = elo(state.elo[player], state.elo[opponent], score)
            state.elo[player], state.elo[opponent] = ratings

    def _welcome_the_frozen(self) -> None:
        """Add those to the players whose models are in the pool."""
        said, state = np.zeros(3, np.float32), self._state
        for player, board in enumerate(self.generations):
            board.pull(said, newer_than=-1)
            model = int(said[0])
            if model > state.models.max(initial=0):
                number = state.add_frozen(player, model, self._capacity)
                self._log(player, number, model)

    def _is_waiting(self) -> bool:
        """Whether a player was told to freeze and its model is not in the pool yet."""
        newest = int(self._state.ordered.max())
        return newest > int(self._state.models.max(initial=0))

    def _freeze_who_is_due(self) -> None:
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
        """[L, C]: how often each learning player is to meet each player."""
        options, state = self.options, self._state
        table = np.zeros((self._num_learning, self._capacity))
        for player in range(self._num_learning):
            ways = branches(
                options.matchmaking, player, state.roster, state.payoff, options.pfsp_weighting
            )
            for way in ways:
                table[player, way.opponents] += way.chance * way.chances
        if options.matchmaking in ("uniform", "pfsp"):
            table *= 1.0 - options.self_play_share
            table[_MAIN, _MAIN] += options.self_play_share
        return table

    def _publish(self) -> None:
        """The state first: what others hear of is never forgotten."""
        self._version += 1
        state = self._state
        self.kept.publish(Parameters(state.to_vector(self._capacity), self._version))
        models = np.full(self._capacity, LEARNING)
        models[: len(state.models)] = state.models
        matches = Matches(self._chances(), models, state.ordered, state.resets)
        self.matches.publish(Parameters(matches.to_vector(), self._version))

    def _show(self) -> None:
        state = self._state
        self._frozen.set(state.num_frozen)
        self._games.set(state.games)
        for gauge, rating in zip(self._elo, state.elo, strict=False):
            gauge.set(float(rating))
        lowest = lowest_against_own_past(state)
        if lowest is not None:
            self._lowest.set(lowest)

    def _log(self, player: int, number: int, model: int) -> None:
        """The family tree and the payoff as they are now, one line for each freezing."""
        state = self._state
        entry = {
            "env_steps": int(state.env_steps.sum()),
            "player": number,
            "model": model,
            "kind": state.roster.kinds[number],
            "parent": player,
            "reset": bool(state.resets[player] == model),
            "elo": [round(float(rating), 1) for rating in state.elo],
            "win_rates": [np.round(rates, 3).tolist() for rates in win_rate_matrix(state)],
        }
        assert self._context.run_dir is not None
        folder = self._context.run_dir / LEAGUE_FOLDER
        folder.mkdir(exist_ok=True)
        with open(folder / LEAGUE_LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def win_rate_matrix(state: LeagueState) -> np.ndarray:
    """[M, M]: the win rate of row against column; 1/2 before any game."""
    return np.stack([state.payoff.win_rates(player) for player in range(len(state.models))])


def lowest_against_own_past(state: LeagueState) -> float | None:
    """The main player's lowest win rate against its own snapshots, of those it has met."""
    past = state.roster.snapshots_of(_MAIN)
    met = past[state.payoff.games[_MAIN, past] > 0]
    return float(state.payoff.win_rates(_MAIN)[met].min()) if len(met) else None
