# SPDX-License-Identifier: Apache-2.0
"""The rules of a league in small: pool, residents, state on boards, opponents, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import veldt
from veldt.errors import ConfigurationError
from veldt.league.learner import EntropySchedule
from veldt.league.matchmaking import MAIN, MAIN_EXPLOITER, Payoff
from veldt.league.options import LeagueOptions
from veldt.league.pool import ModelPool, ResidentModels
from veldt.league.state import LEARNING, SCRIPTED_MODELS, LeagueState, Matches
from veldt.options import RunOptions
from veldt.run.plan import make_plan


def network(env: str = "veldt:kuhn"):
    options = RunOptions(env, backend="serial", network_options={"hidden_sizes": (8,)})
    return make_plan("league", options, {}).topology.network


def test_a_model_comes_back_as_it_was_written(tmp_path):
    pool, vector = ModelPool(tmp_path), np.arange(7, dtype=np.float32)
    pool.write(3, vector)
    np.testing.assert_array_equal(ModelPool(tmp_path).read(3), vector)
    with pytest.raises(RuntimeError, match="cannot be read"):
        pool.read(4)


def test_the_model_not_asked_for_longest_leaves(tmp_path):
    made, pool = network(), ModelPool(tmp_path)
    for number in range(4):
        pool.write(number, np.full_like(made.initial_vector(), number))
    resident = ResidentModels(made, 2, pool.read)
    for number in (0, 1, 0, 2):
        first = next(resident(number).parameters())
        assert (first == number).all()
    assert resident.keys == [0, 2]
    assert resident.loads == 3
    resident(0)
    assert resident.loads == 3
    resident.forget()
    assert resident.keys == []


def test_the_state_survives_its_vector_bit_by_bit():
    state = LeagueState.start((MAIN, MAIN_EXPLOITER), decay=0.99)
    state.add_frozen(0, 1, capacity=5)
    state.payoff.record_many(0, 2, wins=7, draws=1, losses=3)
    state.payoff.record_many(2, 0, wins=1, draws=0, losses=2)
    state.elo[:] = 1 / 3
    state.env_steps[:], state.games = (2**40 + 1, 5), 2**30 + 1
    state.ordered[:], state.resets[:] = (1, 2), (0, 2)
    back = LeagueState.from_vector(state.to_vector(5), 2, 5, 0.99)
    np.testing.assert_array_equal(back.to_vector(5), state.to_vector(5))
    assert back.roster == state.roster
    assert (back.games, back.env_steps.tolist()) == (2**30 + 1, [2**40 + 1, 5])
    np.testing.assert_array_equal(back.payoff.points, state.payoff.points)


def test_matches_survive_their_vector():
    matches = Matches(np.eye(2, 4), np.array([-1, -1, 9, 7]), np.array([9, 0]), np.array([0, 8]))
    back = Matches.from_vector(matches.to_vector(), 2, 4)
    for name in ("chances", "models", "ordered", "resets"):
        np.testing.assert_array_equal(getattr(back, name), getattr(matches, name))


def test_in_a_full_pool_the_oldest_leaves_and_takes_its_results_along():
    state = LeagueState.start((MAIN,), decay=0.99)
    numbers = [state.add_frozen(0, model, capacity=3) for model in (1, 2)]
    state.payoff.record_many(0, 1, wins=3, draws=0, losses=0)
    state.payoff.record_many(0, 2, wins=0, draws=0, losses=3)
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


def test_many_results_at_once_weigh_like_one_after_the_other():
    one, many = Payoff(), Payoff()
    for payoff in (one, many):
        payoff.add_player()
        payoff.add_player()
    for _ in range(20):
        one.record(0, 1, 1.0)
    many.record_many(0, 1, wins=20, draws=0, losses=0)
    np.testing.assert_allclose(many.games, one.games)
    np.testing.assert_allclose(many.points, one.points)
    many.record_many(0, 1, wins=0, draws=0, losses=0)
    np.testing.assert_allclose(many.games, one.games)


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        ("veldt:kuhm", {}, "did you mean veldt:kuhn"),
        ("CartPole-v1", {}, "games of two players or more"),
        ("veldt:kuhn", {"main_exploiters": 2}, "rules of alphastar"),
        ("veldt:kuhn", {"matchmaking": "alphastar", "league_exploiters": 99}, "0 to 16"),
        ("veldt:kuhn", {"resident_models": 1}, "raise --resident-models"),
        (
            "veldt:kuhn",
            {"scripted_opponents": ("minimax",)},
            "scripted opponent 'minimax' is unknown",
        ),
        (
            "veldt:kuhn",
            {"network_options": {"last_action_and_reward": True}},
            "do not receive rewards",
        ),
        ("veldt:kuhn", {"wrappers": {"time_limit": 5}}, "time_limit out"),
        ("veldt:kuhn", {"env_options": {"cards": 4}}, "cards"),
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


def test_exploiters_come_with_alphastar_only():
    assert LeagueOptions().kinds == (MAIN,)
    kinds = LeagueOptions(matchmaking="alphastar").kinds
    assert kinds == (MAIN, MAIN_EXPLOITER, "league_exploiter", "league_exploiter")
    lean = LeagueOptions(matchmaking="alphastar", league_exploiters=0)
    assert lean.kinds == (MAIN, MAIN_EXPLOITER)


def test_entropy_falls_by_the_same_factor_in_equal_times():
    schedule = EntropySchedule(0.4, 0.1, 1000)
    assert [schedule(steps) for steps in (0, 500, 1000, 5000)] == pytest.approx(
        [0.4, 0.2, 0.1, 0.1]
    )
