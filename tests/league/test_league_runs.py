# SPDX-License-Identifier: Apache-2.0
"""Whole leagues: freezing before resets, opponents that change between games only, what a run
leaves behind, and killed processes."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import veldt
from veldt.backends.process.backend import ProcessBackend
from veldt.backends.process.forkserver import warm_up
from veldt.backends.serial import SerialBackend
from veldt.league.players import Opponents
from veldt.league.state import LEAGUE, LeagueState, ModelPool
from veldt.options import RunOptions
from veldt.run.loading import find_checkpoint
from veldt.run.plan import Plan, make_plan

SMALL = {"network_options": {"hidden_sizes": (8,)}, "num_actors": 1, "envs_per_actor": 8}
PATIENCE_SECONDS = 120.0


def plan_of(backend: str, own: dict, **options) -> Plan:
    return make_plan("league", RunOptions("veldt:kuhn", backend=backend, **SMALL, **options), own)


def state_of(backend, plan: Plan) -> LeagueState:
    return plan.config.league.state_of(backend.parameters(LEAGUE).vector)


def test_players_are_frozen_before_they_are_reset(tmp_path):
    own = {
        "matchmaking": "alphastar",
        "league_options": {"league_exploiters": 0, "freeze_env_steps": 500},
    }
    plan = plan_of("serial", own)
    backend = SerialBackend(plan.topology, seed=0)
    backend.run_dir = tmp_path
    backend.start()
    while len(state_of(backend, plan).models) < 8:
        backend.advance(0.0)
    state = state_of(backend, plan)
    learner = backend.snapshots()[[node.name for node in plan.topology.nodes].index("learner-1")]
    backend.stop()
    exploiters = [n for n in state.roster.all_frozen() if state.roster.parents[n] == 1]
    assert len(exploiters) >= 2
    assert learner.counters["league.resets"] >= len(exploiters)
    initial = replace(plan.topology.network, seed=plan.topology.network.seed + 1).initial_vector()
    vectors = [ModelPool(tmp_path).read(int(state.models[n])) for n in exploiters]
    for vector in vectors:
        assert np.abs(vector - initial).max() > 1e-3, "the pool holds initial weights"
    # Each began anew: the second is not the first one, trained on.
    apart = np.linalg.norm(vectors[1] - initial)
    assert apart < 2 * np.linalg.norm(vectors[0] - initial)
    assert all(kind == "main" for n, kind in enumerate(state.roster.kinds) if
               state.roster.parents[n] == 0)  # fmt: skip


def test_opponents_change_when_a_game_is_over_and_at_no_other_time(tmp_path, monkeypatch):
    faced: dict[int, int] = {}
    changes = []
    act, over = Opponents.act, Opponents.game_over

    def watching(self, turns):
        for game in turns.games.tolist():
            key = (int(self._opponent[game]), int(self._model[game]))
            assert faced.setdefault(game, key) == key, "an opponent changed in the middle of a game"
        return act(self, turns)

    def ending(self, games, seats, returns):
        over(self, games, seats, returns)
        for game in games.tolist():
            key = (int(self._opponent[game]), int(self._model[game]))
            changes.append(faced.get(game) != key)
            faced[game] = key

    monkeypatch.setattr(Opponents, "act", watching)
    monkeypatch.setattr(Opponents, "game_over", ending)
    league = {"freeze_env_steps": 200, "max_frozen": 3, "self_play_share": 0.0}
    plan = plan_of("serial", {"league_options": league})
    backend = SerialBackend(plan.topology, seed=1)
    backend.run_dir = tmp_path
    backend.start()
    for _ in range(20):
        backend.advance(0.0)
    state = state_of(backend, plan)
    backend.stop()
    assert sum(changes) > 20
    assert len(state.models) == 4
    assert state.models[1:].min() > 1  # the pool was full and the oldest has left


@pytest.mark.slow
def test_noisy_opponents_draw_from_all_that_is_allowed(tmp_path, monkeypatch):
    opening, act = [], Opponents.act

    def watching(self, turns):
        actions, legal = act(self, turns), turns.legal
        assert legal[np.arange(len(actions)), actions].all()
        opening.extend(actions[legal.all(axis=1)].tolist())
        return actions

    monkeypatch.setattr(Opponents, "act", watching)
    options = RunOptions("veldt:tic_tac_toe", backend="serial", **SMALL)
    # At this learning rate a model soon has a favourite move, which must not show.
    plan = make_plan(
        "league", options, {"league_options": {"opponent_noise": 1.0}, "learning_rate": 0.1}
    )
    backend = SerialBackend(plan.topology, seed=1)
    backend.run_dir = tmp_path
    backend.start()
    while len(opening) < 3000:
        backend.advance(0.0)
    backend.stop()
    shares = np.bincount(opening, minlength=9) / len(opening)
    np.testing.assert_allclose(shares, 1 / 9, atol=0.03)


def test_scripted_players_are_opponents_from_the_first_results_on(tmp_path):
    result = veldt.train(
        "league",
        "veldt:tic_tac_toe",
        backend="serial",
        run_dir=str(tmp_path / "run"),
        total_env_steps=6000,
        league_options={"freeze_env_steps": 3000, "self_play_share": 0.0, "opponents_per_actor": 8},
        scripted_opponents=("simple_players:random_script", "benchmarks.tic_tac_toe:minimax"),
        evaluation_episodes=0,
        **SMALL,
    )
    league = result.league
    assert league["kinds"][:3] == ["main", "scripted", "scripted"]
    assert league["players"] == 3 + league["frozen"]
    random, minimax = league["win_rates"][0][1:3]
    assert minimax <= 0.5  # no player beats it
    assert minimax + 0.1 < random


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("league") / "run"
    veldt.train(
        "league",
        "veldt:tic_tac_toe",
        backend="serial",
        run_dir=str(run_dir),
        total_env_steps=4000,
        league_options={"freeze_env_steps": 1000, "measure_env_steps": 1000},
        evaluation_episodes=4,
        **SMALL,
    )
    return run_dir


def test_what_a_run_leaves_behind(finished):
    result = json.loads((finished / "result.json").read_text())
    league = result["league"]
    assert league["players"] == 1 + league["frozen"] == len(league["elo"])
    assert league["frozen"] >= 3
    assert league["games"] > 500
    assert set(league["measures"]) == {"minimax.losses_first", "minimax.losses_second"}
    assert result["nash_conv"] is None
    measured = lines(finished / "league" / "measures.jsonl")
    assert len(measured) >= 3
    family = lines(finished / "league" / "league.jsonl")
    assert [entry["model"] for entry in family] == list(range(1, len(family) + 1))
    rates = np.array(family[-1]["win_rates"])
    np.testing.assert_allclose(rates + rates.T, 1.0, atol=2e-3)
    metrics = lines(finished / "metrics.jsonl")
    assert "counter/league.minimax.losses_first" in metrics[-1]


def test_the_best_model_is_the_one_that_measured_best(finished):
    """Also where the last one is worse: what training games return says nothing in a league."""
    measured = lines(finished / "league" / "measures.jsonl")
    lost = [row["minimax.losses_first"] + row["minimax.losses_second"] for row in measured]
    league = json.loads((finished / "result.json").read_text())["league"]
    best, last = league["best"], sum(league["measures"].values())
    assert sum(best["measures"].values()) == min(*lost, last)
    if last >= min(lost):
        assert best["env_steps"] == measured[int(np.argmin(lost))]["env_steps"]
    kept = find_checkpoint(finished, "best")
    assert kept.meta["env_steps"] == best["env_steps"]
    np.testing.assert_array_equal(
        kept.load("weights")["vector"], ModelPool(finished).read_best()[0]
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_nash_conv_is_in_the_result(tmp_path):
    run = tmp_path / "run"
    result = veldt.train("league", "veldt:kuhn", backend="serial", run_dir=str(run),
                         total_env_steps=2000, evaluation_episodes=0, **SMALL)  # fmt: skip
    assert len(lines(run / "league" / "measures.jsonl")) == 1  # of the first weights
    assert find_checkpoint(run, "best").meta["env_steps"] > result.env_steps // 2
    assert 0.0 < result.nash_conv["last"] < 2.0
    assert 0.0 < result.nash_conv["mixture"] < 2.0


CYCLING = {
    "backend": "serial",
    "num_actors": 1,
    "total_env_steps": 150_000,
    "envs_per_actor": 32,
    "trajectory_steps": 4,
    "batch_trajectories": 1,
    "league_options": {
        "freeze_env_steps": 2500,
        "measure_env_steps": 5000,
        "self_play_share": 0.0,
        "max_frozen": 64,
    },
    "network_options": {"hidden_sizes": (16,)},
    "learning_rate": 1e-2,
    "optimizer_options": {"decay_learning_rate": False},
    "entropy_coefficient": 0.2,
    "loss_options": {"final_entropy": None, "normalize_returns": False},
    "evaluation_episodes": 0,
}


def distances(matchmaking: str, run_dir: Path) -> tuple[list[float], float]:
    """Of the last model to a third each over the second half of the run; of the mixture."""
    result = veldt.train(
        "league",
        "veldt:rock_paper_scissors",
        matchmaking=matchmaking,
        run_dir=str(run_dir),
        **CYCLING,
    )
    text = (run_dir / "league" / "measures.jsonl").read_text()
    last = [json.loads(line)["distance.last"] for line in text.splitlines()]
    return last[len(last) // 2 :], result.league["measures"]["distance.mixture"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_latest_model_cycles_and_the_mixture_of_the_league_does_not(tmp_path):
    cycling, _ = distances("latest", tmp_path / "latest")
    settled, mixture = distances("pfsp", tmp_path / "pfsp")
    assert max(cycling) > 0.3
    assert max(settled) < max(cycling) - 0.1
    assert mixture < 0.05


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killing_manager_learner_and_actor_loses_no_model_and_no_result(tmp_path):
    warm_up()
    plan = plan_of("process", {"league_options": {"freeze_env_steps": 2000}})
    backend = ProcessBackend(plan.topology, seed=0)
    backend.run_dir = tmp_path
    backend.start()

    def until(condition) -> LeagueState:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            backend.advance(0.05)
            state = state_of(backend, plan)
            if condition(state):
                return state
        raise AssertionError("the league has come to a stop")

    try:
        before = until(lambda state: len(state.models) >= 3)
        for victim in ("manager-0", "learner-0", "actor-0", "manager-0"):
            vectors = [ModelPool(tmp_path).read(int(model)) for model in before.models[1:]]
            known = len(before.models)
            os.kill(backend.process_ids()[victim], signal.SIGKILL)
            after = until(lambda state, known=known: len(state.models) > known)
            assert after.models[:known].tolist() == before.models.tolist()
            assert after.games >= before.games
            seated = after.payoff.seated_first[:known, :known]
            assert (seated >= before.payoff.seated_first).all()
            for model, vector in zip(before.models[1:], vectors, strict=True):
                np.testing.assert_array_equal(ModelPool(tmp_path).read(int(model)), vector)
            before = after
    finally:
        backend.stop()
