# SPDX-License-Identifier: Apache-2.0
"""Actors that come and go with the machines of a Ray cluster while a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driving import advance_until, counter

pytest.importorskip("ray")

from auditing import audited
from several_nodes import several_nodes

import veldt
from veldt.backends.base import BackendOptions
from veldt.backends.elastic import ActorCounts
from veldt.backends.ray.backend import RayBackend
from veldt.options import RunOptions
from veldt.run.elastic import elastic_actors
from veldt.run.plan import make_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def elastic_impala(num_actors: str) -> RayBackend:
    options = RunOptions(
        env="veldt:sleeping?step_ms=1",
        backend="ray",
        num_actors=num_actors,
        envs_per_actor=4,
        total_env_steps=1,
    )
    topology = make_plan("impala", options, {}).topology
    elastic = elastic_actors(topology, options)
    return RayBackend(
        audited(topology), seed=1, options=BackendOptions(verify=True), elastic=elastic
    )


def test_actors_follow_the_machines_and_nothing_committed_is_lost() -> None:
    """One CPU for the learner, on the head, and one for each actor."""
    with several_nodes(RAY_health_check_period_ms="300") as nodes:
        [first] = nodes.add()
        backend = elastic_impala("2..4")
        learner, counts = 4, backend.actors
        assert counts is not None

        def committed() -> float:
            return counter(backend, learner, "trained_env_steps")

        def says(text: str) -> bool:
            return any(text in note for note in backend.notes)

        def goes_on(number: int, what: str) -> None:
            advance_until(backend, lambda: counts.now == number, what)
            before = committed()
            advance_until(backend, lambda: committed() > before + 400, "it to go on")

        try:
            backend.start()
            waiting = backend._supervisor.members.waiting
            advance_until(backend, lambda: len(waiting()) == 1, "the first actor")
            assert counts.now == 0, "two are to begin together"
            [second] = nodes.add(num_cpus=2)
            goes_on(3, "the actors of both machines")
            assert (counts.most, counts.added, backend.restarts) == (3, 1, 0)

            nodes.lose(second)
            goes_on(1, "the loss to be noticed")
            nodes.lose(first)
            advance_until(backend, lambda: counts.now == 0, "the second loss to be noticed")
            advance_until(backend, lambda: says("the run waits until"), "it to say so")
            nodes.add()
            goes_on(1, "a new machine")
        finally:
            backend.stop()
        assert counts == ActorCounts(now=1, most=3, added=2, lost=3)
        assert backend.restarts <= 1, "it may be the one that had never been there"
        assert counter(backend, learner, "missing") == counter(backend, learner, "repeated") == 0
        assert committed() == counter(backend, learner, "committed_env_steps") > 0


def test_a_run_on_one_machine_has_the_actors_it_has_cores_for(
    ray_cluster: None, tmp_path: Path
) -> None:
    result = veldt.train(
        "impala",
        env="CartPole-v1",
        backend="ray",
        num_actors="1..3",
        envs_per_actor=4,
        total_env_steps=2000,
        evaluation_episodes=0,
        run_dir=str(tmp_path),
        quiet=True,
    )
    assert result.actors is not None
    assert 1 <= result.actors["now"] == result.actors["most"] <= 3
    assert result.actors["lost"] == result.restarts == 0
    assert "--num-actors 1..3" in (result.command or "")
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["actors"] == result.actors
    assert "actors/now" in (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    assert len(veldt.evaluate(tmp_path, episodes=2).returns) == 2
