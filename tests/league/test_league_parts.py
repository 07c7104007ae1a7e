# SPDX-License-Identifier: Apache-2.0
"""The parts of a league: pool, resident models, state on boards, results, options, refusals."""

from types import SimpleNamespace

import numpy as np
import pytest

import veldt
from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.league.manager import LeagueManager
from veldt.league.matchmaking import MAIN, MAIN_EXPLOITER
from veldt.league.players import EntropySchedule, Opponents, ResidentModels
from veldt.league.state import (
    DRAW,
    LEARNING,
    LOSS,
    SCRIPTED_MODELS,
    WIN,
    LeagueOptions,
    LeagueState,
    Matches,
    MatchesSource,
    ModelPool,
)
from veldt.optimizers import Schedule
from veldt.options import RunOptions
from veldt.run.plan import make_plan
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import Parameters

KUHN = "veldt:kuhn"


def network(env: str = KUHN):
    options = RunOptions(env, backend="serial", network_options={"hidden_sizes": (8,)})
    return make_plan("league", options, {}).topology.network


def test_the_model_not_asked_for_longest_leaves(tmp_path):
    made, pool = network(), ModelPool(tmp_path)
    for number in range(4):
        pool.write(number, np.full_like(made.initial_vector(), number))
    read = []
    resident = ResidentModels(made, 2, lambda number: read.append(number) or pool.read(number))
    for number in (0, 1, 0, 2, 0, 1):
        first = next(resident(number).parameters())
        assert (first == number).all()
    assert read == [0, 1, 2, 1]
    resident.forget()
    resident(1)
    assert read[4:] == [1]
    with pytest.raises(RuntimeError, match="cannot be read"):
        pool.read(9)


def test_the_state_survives_its_vector_bit_by_bit():
    state = LeagueState.start((MAIN, MAIN_EXPLOITER), decay=0.99)
    state.add_frozen(0, 1, capacity=5)
    state.payoff.record(0, 2, wins=7, draws=1, losses=3)
    state.payoff.record(2, 0, wins=1, draws=0, losses=2)
    state.elo[:] = 1 / 3
    state.env_steps[:], state.games = (2**40 + 1, 5), 2**30 + 1
    state.ordered[:], state.resets[:] = (1, 2), (0, 2)
    back = LeagueState.from_vector(state.to_vector(5), 2, 5, 0.99)
    np.testing.assert_array_equal(back.to_vector(5), state.to_vector(5))
    assert back.roster == state.roster
    assert (back.games, back.env_steps.tolist()) == (2**30 + 1, [2**40 + 1, 5])
    np.testing.assert_array_equal(back.payoff.points, state.payoff.points)


def test_in_a_full_pool_the_oldest_leaves_and_takes_its_results_along():
    state = LeagueState.start((MAIN,), decay=0.99)
    numbers = [state.add_frozen(0, model, capacity=3) for model in (1, 2)]
    state.payoff.record(0, 1, wins=3, draws=0, losses=0)
    state.payoff.record(0, 2, wins=0, draws=0, losses=3)
    assert numbers == [1, 2]
    assert state.add_frozen(0, 3, capacity=3) == 1
    assert state.models.tolist() == [LEARNING, 3, 2]
    assert state.payoff.win_rates(0).tolist() == [0.5, 0.5, 0.0]
    assert state.add_frozen(0, 4, capacity=3) == 2


def test_scripted_players_stay_in_a_full_pool():
    state = LeagueState.start((MAIN,), decay=0.99, num_scripted=2)
    for model in (1, 2, 3):
        state.add_frozen(0, model, capacity=5)
    assert state.models.tolist() == [LEARNING, SCRIPTED_MODELS, SCRIPTED_MODELS - 1, 3, 2]
    assert state.roster.kinds[1:3] == ["scripted", "scripted"]
    assert state.roster.snapshots_of(0).tolist() == [3, 4]
    assert state.num_frozen == 2
    back = LeagueState.from_vector(state.to_vector(5), 1, 5, 0.99)
    assert back.roster == state.roster


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
    return options.state_of(kept.vector), Matches.from_vector(matches.vector, 1, capacity)


def test_the_manager_discards_results_of_a_model_that_left(tmp_path):
    options = LeagueOptions(max_frozen=2, freeze_env_steps=9)
    state = LeagueState.start((MAIN,), options.payoff_decay)
    for model in (1, 2, 3):  # the third takes the place of the first
        state.add_frozen(0, model, options.capacity)
    after, _ = manager_of(options, state, [(1, 1, 4), (2, 2, 5)], tmp_path)
    assert after.games == 5
    assert after.payoff.seated_first[0].tolist() == [0, 0, 5]
    assert (after.env_steps.tolist(), after.ordered.tolist()) == ([9], [1])


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


def matches_of(opponent: int, model: int) -> np.ndarray:
    chances, models = np.eye(3)[[opponent]], np.array([LEARNING, model, 7])
    return Matches(chances, models, np.zeros(1, int), np.zeros(1, int)).to_vector()


def opponents_of(board: Board, sent: dict, run_dir, at_once: int) -> Opponents:
    """Of two games; `sent` receives their results."""
    made = network()
    slot = {"player": [0], "env_steps": [0], "models": np.zeros(3), "outcomes": np.zeros((3, 2, 3))}
    sink = SimpleNamespace(reserve=lambda: slot, commit=sent.update)
    weights, source = [Board(made.initial_vector())], MatchesSource(board, 1, 3)
    options = LeagueOptions(opponents_per_actor=at_once, cached_models=at_once)
    opponents = Opponents(0, made, source, weights, sink, options)
    opponents.open(context("actor-0", run_dir), num_games=2, num_players=2)
    return opponents


FIRST, BOTH = np.array([0]), np.array([0, 1])
WINS = np.array([[1.0, -1.0]])


def test_an_actor_discards_results_of_a_model_that_left(tmp_path):
    board, sent = Board(matches_of(1, model=1)), {}
    opponents = opponents_of(board, sent, tmp_path, at_once=1)
    opponents.game_over(FIRST, FIRST, WINS)
    board.publish(Parameters(matches_of(1, model=8), 1))
    opponents.refresh()  # what was counted of model 1 is not that of model 8
    opponents.game_over(np.array([1]), FIRST, WINS)  # and this game began against model 1
    opponents.game_over(FIRST, FIRST, WINS)  # as did this one
    for returns in (WINS, -WINS, -WINS, 0 * WINS):
        opponents.game_over(FIRST, FIRST, returns)
    assert opponents.report(4)
    assert sent["models"].tolist() == [LEARNING, 8, 7]
    counted = {WIN: 1, LOSS: 2, DRAW: 1}
    assert {each: sent["outcomes"][1, 0, each] for each in counted} == counted
    assert sent["outcomes"].sum() == 4


def test_all_opponents_of_an_actor_are_drawn_anew_one_after_the_other(tmp_path):
    board, sent = Board(matches_of(1, model=1)), {}
    opponents = opponents_of(board, sent, tmp_path, at_once=2)
    board.publish(Parameters(matches_of(2, model=1), 1))
    for _ in range(2):
        opponents.refresh()
    for _ in range(2):
        opponents.game_over(BOTH, np.zeros(2, int), np.repeat(WINS, 2, 0))
    assert opponents.report(4)
    assert sent["outcomes"].sum(axis=(1, 2)).tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        ("veldt:kuhm", {}, "did you mean veldt:kuhn"),
        ("CartPole-v1", {}, "games of two players or more"),
        (KUHN, {"league_options": {"main_exploiters": 2}}, "rules of alphastar"),
        (
            KUHN,
            {"matchmaking": "alphastar", "league_options": {"league_exploiters": 99}},
            "0 to 16",
        ),
        (KUHN, {"league_options": {"cached_models": 1}}, "raise --league-options cached_models"),
        (KUHN, {"scripted_opponents": ("minimax",)}, "scripted opponent 'minimax' is unknown"),
        (KUHN, {"network_options": {"last_action_and_reward": True}}, "do not receive rewards"),
        (KUHN, {"wrappers": {"time_limit": 5}}, "time_limit out"),
        (KUHN, {"env_options": {"cards": 4}}, "cards"),
        ("pettingzoo:no_such_module", {}, "veldt[pettingzoo]"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(env, options, reason, tmp_path):
    with pytest.raises(ConfigurationError) as refusal:
        veldt.train("league", env, backend="serial", run_dir=str(tmp_path / "run"), **options)
    text = str(refusal.value)
    assert reason in text
    assert "\n" not in text
    assert not (tmp_path / "run").exists()


def test_entropy_falls_by_the_same_factor_in_equal_times():
    schedule = EntropySchedule(0.4, 0.1, Schedule(1000))
    assert [schedule(steps) for steps in (0, 500, 1000, 5000)] == pytest.approx(
        [0.4, 0.2, 0.1, 0.1]
    )
