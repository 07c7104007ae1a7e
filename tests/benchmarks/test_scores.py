# SPDX-License-Identifier: Apache-2.0
"""The scoreboard goes on where it was interrupted, and counts seeds that did not get there."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
MACHINE = {"cpu": "a cpu", "cores": 2, "python": "3", "versions": {"torch": "2"}, "commit": "abc",
           "command": "python scores.py"}  # fmt: skip


@pytest.fixture
def scores(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("scores")
    for name in ("scores", "scores_report", "scores_summary", "scores_tasks", "measuring"):
        sys.modules.pop(name, None)


def run(seed, seconds=None, contestant="veldt ppo", **more):
    reached = seconds is not None
    steps = 100 * (seed + 1)
    return {
        "task": "CartPole-v1", "contestant": contestant, "seed": seed, "target": 475.0,
        "max_seconds": 60.0, "reached": reached, "seconds_to_target": seconds,
        "env_steps_to_target": steps if reached else None, "env_steps": 5_000,
        "evaluation_return": 480.0 if reached else 20.0, "wall_seconds": seconds or 60.0,
        "machine": MACHINE, "cores": 2, **more,
    }  # fmt: skip


def given(**options):
    defaults = {"seeds": [0, 1], "only": ["CartPole-v1"], "leave_out": [], "untimed": False}
    return argparse.Namespace(**{**defaults, **options})


def test_finished_runs_are_not_repeated_and_a_line_cut_off_is_no_run(scores, tmp_path):
    path = tmp_path / "scores.jsonl"
    scores._append(path, run(0, 9.0))
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(run(1, 8.0))[:40])
    assert [entry["seed"] for entry in scores.finished(path)] == [0]
    keys = [wanted.key for wanted in scores.wanted_runs(given())]
    assert ("CartPole-v1", "veldt ppo", 0) in keys
    assert ("CartPole-v1", "sb3 ppo", 1) in keys


def test_a_run_with_constants_of_yesterday_is_made_again(scores, tmp_path, monkeypatch):
    path, asked = tmp_path / "scores.jsonl", []
    for earlier in (run(0, 9.0, superseded=True), run(1, 8.0)):
        scores._append(path, earlier)

    def execute(wanted, max_seconds, cores):
        asked.append(wanted.seed)
        return run(wanted.seed, 7.0)

    monkeypatch.setattr(scores, "execute", execute)
    limits = {"max_seconds": 60.0, "total_seconds": 1e9, "jobs": 1, "cores": 1}
    scores.measure(given(only=["CartPole-v1 veldt ppo"], again=False, **limits), path, MACHINE)
    assert asked == [0]
    assert [found["seconds_to_target"] for found in scores.finished(path)] == [9.0, 8.0, 7.0]


def test_a_seed_that_did_not_get_there_counts_with_its_limit(scores):
    runs = [run(0, 10.0), run(1, 20.0), run(2)]
    document = scores.scores_summary.summary(runs)
    entry = document["tasks"]["CartPole-v1"]["veldt ppo"]
    assert (entry["reached"], entry["seeds"]) == (2, 3)
    assert entry["seconds"]["median"] == 20.0
    assert entry["seconds"]["high"] <= 60.0
    [row] = scores.scores_report.rows({"veldt ppo": entry})
    assert row[1] == "2 of 3"


def scored(seed, evaluation, contestant="veldt ppo", **more):
    asked = {"task": "MinAtar/Breakout-v1", "target": None, "steps_asked": 5_000, "cores": 2,
             "load_before": 1.0}  # fmt: skip
    found = {"evaluation_return": evaluation, "mean_return_100": evaluation - 1.0}
    return run(seed, contestant=contestant, **{**asked, **found, **more})


def test_times_are_compared_within_one_call(scores):
    """The second call met a machine of half the pace; the third had the peer only."""
    paces = {0: ("first", 30.0, 100.0), 1: ("second", 60.0, 200.0), 2: ("third", 60.0, 100.0)}
    runs = []
    for seed, (call, own, peer) in paces.items():
        machine = {**MACHINE, "command": call}
        earlier = {**MACHINE, "command": "earlier"} if call == "third" else machine
        runs += [scored(seed, 9.0, wall_seconds=own, machine=earlier)]
        runs += [scored(seed, 9.0, "sb3 ppo", wall_seconds=peer, machine=machine)]
    runs += [scored(3, 9.0, untimed=True), scored(3, 9.0, "sb3 ppo")]
    document = scores.scores_summary.summary(runs)
    [ratio] = document["time_ratios"]
    assert (ratio["contestant"], ratio["peer"]) == ("veldt ppo", "sb3 ppo")
    assert ratio["by_seed"] == {0: 0.3, 1: 0.3}
