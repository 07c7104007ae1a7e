# SPDX-License-Identifier: Apache-2.0
"""The channels of a league and the parts that connect its nodes to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veldt.environments.lookup import imported_function
from veldt.errors import ConfigurationError
from veldt.league.learner import LearningPlayer
from veldt.league.manager import LeagueManager
from veldt.league.measures import Measures
from veldt.league.opponents import Opponents, Script
from veldt.league.options import LeagueOptions
from veldt.league.state import (
    LEAGUE,
    LEARNING,
    MATCHES,
    Matches,
    generation_board,
    results_layout,
)
from veldt.problem import Problem
from veldt.topology import Topology, numbered


class League:
    """Learning players with weights of their own, and the boards between them and the manager."""

    def __init__(self, topology: Topology, problem: Problem, options: LeagueOptions) -> None:
        _check(problem)
        self._options, self._problem, self._network = options, problem, topology.network
        self._scripts: tuple[Script, ...] = tuple(
            imported_function(name, "scripted opponent") for name in options.scripted_opponents
        )
        self.size, self._capacity = len(options.kinds), options.capacity
        network, players = topology.network, range(self.size)
        self.networks = [replace(network, seed=network.seed + player) for player in players]
        self.weights = [
            topology.board(name, first)
            for name, first in zip(numbered("weights", self.size), self.networks, strict=True)
        ]
        state = options.first_state()
        self._state = topology.board(LEAGUE, state.to_vector(self._capacity))
        first = Matches(
            np.eye(self.size, self._capacity),
            np.full(self._capacity, LEARNING),
            state.ordered,
            state.resets,
        )
        self._matches = topology.board(MATCHES, first.to_vector())
        names = (generation_board(player) for player in players)
        self._generations = [topology.board(name, np.zeros(3, np.float32)) for name in names]
        messages = 4 * problem.num_actors
        self._results = topology.queue("results", results_layout(self._capacity), messages)

    def opponents(self, player: int) -> Opponents:
        """Of an actor that plays for a learning player."""
        return Opponents(
            player,
            self.size,
            self._capacity,
            self._network,
            self._matches.source(),
            [board.source() for board in self.weights],
            self._results.sink,
            self._options.opponents_at_once,
            self._options.resident_models,
            self._options.opponent_noise,
            self._scripts,
        )

    def learning_player(self, player: int) -> LearningPlayer:
        return LearningPlayer(
            player,
            self.size,
            self._capacity,
            self._matches.source(),
            self._generations[player].sink,
            self._generations[player].source(),
        )

    def manager(self) -> LeagueManager:
        measures = Measures(
            self._problem.environment.name,
            self._network,
            self.weights[0].source(),
            self._options.measure_env_steps,
        )
        return LeagueManager(
            self._results.source(),
            self._state.sink,
            self._state.source(),
            self._matches.sink,
            [board.source() for board in self._generations],
            self._options,
            measures,
        )


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
