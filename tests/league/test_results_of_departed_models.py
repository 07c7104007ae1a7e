# SPDX-License-Identifier: Apache-2.0
"""Results of models that have left the pool are discarded; the share of self-play is as asked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from veldt.context import NodeContext
from veldt.league.manager import LeagueManager
from veldt.league.matchmaking import MAIN, Payoff
from veldt.league.opponents import Opponents
from veldt.league.options import LeagueOptions
from veldt.league.state import LEARNING, WIN, LeagueState, Matches
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import Parameters


class Board:
    """A board in memory, both its sink and its source."""

    def __init__(self, vector: np.ndarray) -> None:
        self.vector, self.version = np.asarray(vector, np.float32), 0

    def publish(self, parameters: Parameters) -> None:
        self.vector, self.version = parameters.vector.copy(), parameters.version

    def pull(self, into: np.ndarray, newer_than: int) -> int | None:
        if self.version <= newer_than:
            return None
        into[:] = self.vector
        return self.version


def context(name: str, run_dir) -> NodeContext:
    return NodeContext(name, 0, 0, NodeTelemetry(), run_dir=run_dir)


def manager_of(options: LeagueOptions, state: LeagueState, results: list, run_dir):
    """A manager that receives `results` [(opponent, model, wins)] of player 0; and its matches."""
    capacity = options.capacity
    batches = []
    for opponent, model, wins in results:
        models, outcomes = np.zeros(capacity, np.int64), np.zeros((capacity, 2, 3), np.int64)
        models[opponent], outcomes[opponent, 0, WIN] = model, wins
        arrays = {"player": [0], "env_steps": [wins], "models": models, "outcomes": outcomes}
        batches.append(arrays)
    source = SimpleNamespace(
        take_batch=lambda: batches.pop(0) if batches else None, release=lambda batch: None
    )
    measures = SimpleNamespace(open=lambda context: None, update=lambda state: None)
    kept, matches = Board(state.to_vector(capacity)), Board(np.zeros(0))
    generation = Board(np.zeros(3))
    made = LeagueManager(source, kept, kept, matches, [generation], options, measures)
    made.open(context("manager-0", run_dir))
    assert made.step()
    after = LeagueState.from_vector(kept.vector.copy(), 1, capacity, options.payoff_decay)
    return after, Matches.from_vector(matches.vector, 1, capacity)


def test_the_manager_discards_results_of_a_model_that_left(tmp_path):
    options = LeagueOptions(max_frozen=2)
    state = LeagueState.start((MAIN,), options.payoff_decay)
    for model in (1, 2, 3):  # the third takes the place of the first
        state.add_frozen(0, model, options.capacity)
    after, _ = manager_of(options, state, [(1, 1, 4), (2, 2, 5)], tmp_path)
    assert after.games == 5
    assert after.payoff.seated_first[0].tolist() == [0, 0, 5]
    assert after.env_steps.tolist() == [9]


@pytest.mark.parametrize("rule", ["uniform", "pfsp"])
def test_self_play_has_its_share_of_the_games(rule, tmp_path):
    options = LeagueOptions(matchmaking=rule, self_play_share=0.3, max_frozen=4)
    state = LeagueState.start((MAIN,), options.payoff_decay)
    for model in (1, 2):
        state.add_frozen(0, model, options.capacity)
    _, matches = manager_of(options, state, [(1, 1, 1), (2, 2, 1)], tmp_path)
    chances = matches.chances[0]
    assert chances.sum() == pytest.approx(1.0)
    assert chances[0] == pytest.approx(0.3)
    assert chances[1:3] == pytest.approx([0.35, 0.35])


def test_an_actor_discards_results_of_a_model_that_left(tmp_path):
    options = RunOptions("veldt:kuhn", backend="serial", network_options={"hidden_sizes": (8,)})
    network = make_plan("league", options, {}).topology.network

    def matches(model: int) -> np.ndarray:
        chances, models = np.array([[0.0, 1.0, 0.0]]), np.array([LEARNING, model, 7])
        return Matches(chances, models, np.zeros(1, int), np.zeros(1, int)).to_vector()

    board, sent = Board(matches(model=1)), {}
    slot = {"player": [0], "env_steps": [0], "models": np.zeros(3), "outcomes": np.zeros((3, 2, 3))}
    sink = SimpleNamespace(reserve=lambda: slot, commit=sent.update)
    weights = [Board(network.initial_vector())]
    opponents = Opponents(0, 1, 3, network, board, weights, sink, at_once=1, resident_models=1)
    opponents.open(context("actor-0", tmp_path), num_games=2, num_players=2)
    wins = np.array([[1.0, -1.0]])
    opponents.game_over(np.array([0]), np.array([0]), wins)
    board.publish(Parameters(matches(model=8), 1))
    opponents.refresh()  # what was counted of model 1 is not that of model 8
    opponents.game_over(np.array([1]), np.array([0]), wins)  # and this game began against model 1
    opponents.game_over(np.array([0]), np.array([0]), wins)  # as did this one
    opponents.game_over(np.array([0]), np.array([0]), wins)
    assert opponents.report(4)
    assert sent["models"].tolist() == [LEARNING, 8, 7]
    assert sent["outcomes"].sum() == sent["outcomes"][1, 0, WIN] == 1


def test_many_results_of_a_pair_count_by_seat_and_against_itself_change_nothing():
    payoff = Payoff()
    for _ in range(2):
        payoff.add_player()
    payoff.record_many(0, 1, wins=3, draws=1, losses=2)
    payoff.record_many(1, 0, wins=0, draws=0, losses=4)
    payoff.record_many(0, 0, wins=5, draws=0, losses=1)
    assert payoff.seated_first.tolist() == [[6, 6], [4, 0]]
    assert payoff.games[0, 0] == 0
    assert payoff.win_rates(0)[0] == 0.5
    assert payoff.win_rates(1)[0] == pytest.approx(1.0 - payoff.win_rates(0)[1])
