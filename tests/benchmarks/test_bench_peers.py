# SPDX-License-Identifier: Apache-2.0
"""The contest's rules, its resuming and its table; no peer is installed for this."""

import argparse
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")

import bench_peers as bench  # noqa: E402
import peers_report as report  # noqa: E402
import referee  # noqa: E402

del sys.path[:2]
ADAPTER = """import json, sys
with open({log!r}, "a") as file:
    print(*sys.argv[1:], file=file)
if "a2c" in sys.argv:
    sys.exit("no such thing")
print("a library says hello")
print(json.dumps({{"start_seconds": 1.0, "steps_per_second": 100.0, "samples_per_second": 100.0,
                   "seconds_to_target": 9.0, "envs": 8}}))
"""


@pytest.fixture
def contest(tmp_path, monkeypatch):
    """Two contestants whose adapters are stubs that write down that they were called."""
    log = tmp_path / "calls"
    log.touch()
    for framework in ("sb3", "veldt"):
        (tmp_path / f"run_{framework}.py").write_text(ADAPTER.format(log=str(log)))
    chosen = tuple(bench.Contestant(f, s) for f, s in (("sb3", "ppo"), ("veldt", "impala")))
    monkeypatch.setattr(bench, "ADAPTERS", tmp_path)
    monkeypatch.setattr(bench, "CONTESTANTS", chosen)
    monkeypatch.setattr(bench.Contestant, "python", lambda self: sys.executable)
    monkeypatch.setattr(bench, "installed", lambda framework: {"torch": "1"})
    monkeypatch.setattr(bench, "step_costs", lambda given, cores: None)

    def call(**changes):
        given = {"seeds": 2, "only": None, "seconds": 8.0, "warm_up": 4.0, "limit": 60.0}
        given |= {"target": 475.0, "again": False} | changes
        before = len(log.read_text().splitlines())
        document = bench.measure(argparse.Namespace(**given), tmp_path / "peers.json")
        return document, len(log.read_text().splitlines()) - before

    return call


def test_finished_runs_are_not_repeated(contest):
    document, calls = contest(seeds=1)
    assert calls == 4  # two contestants, a rate and a score each
    _, calls = contest(seeds=1)
    assert calls == 0
    document, calls = contest(seeds=2)
    assert calls == 4
    assert len(document["runs"]) == 8
    _, calls = contest(seeds=2, again=True)
    assert calls == 8


def test_a_failed_run_is_told_and_tried_again(contest, monkeypatch):
    monkeypatch.setattr(bench, "CONTESTANTS", (bench.Contestant("sb3", "a2c"),))
    document, calls = contest(seeds=1)
    assert calls == 2
    assert all("no such thing" in run["error"] for run in document["runs"])
    assert document["medians"] == {}
    _, calls = contest(seeds=1)
    assert calls == 2


def run(framework, setting, env, mode, seed, **values):
    known = {"steps_per_second": None, "seconds_to_target": None, "samples_per_second": None}
    rules = {"limit": 60.0, "target": 475.0}
    return {"framework": framework, "setting": setting, "env": env, "mode": mode, "seed": seed,
            "start_seconds": 2.0, "envs": 8, "peak_memory_mb": 100.0 + seed, "conditions": rules,
            **known, **values}  # fmt: skip


@pytest.fixture
def document():
    """Three seeds; Veldt is faster, one peer reaches the target twice, the other once."""
    cartpole, pong, runs = "CartPole-v1", "ALE/Pong-v5", []
    times = ((3.0, 20.0, None), (2.0, None, 50.0), (4.0, 30.0, None))
    for seed, (mine, good, bad) in enumerate(times):
        for name, rate, time in (("veldt impala", 250_000.0, mine), ("sb3 ppo", 4000.0, good),
                                 ("rllib ppo", 20_000.0, bad)):  # fmt: skip
            who = name.split()
            runs.append(run(*who, cartpole, "rate", seed, steps_per_second=rate + seed))
            # The rate of a run that ends at a score must not be taken for the rate.
            runs.append(run(*who, cartpole, "score", seed, seconds_to_target=time,
                            steps_per_second=1.0))  # fmt: skip
        runs.append(run("veldt", "impala", pong, "rate", seed, steps_per_second=900.0))
        runs.append(run("sb3", "a2c", pong, "rate", seed, steps_per_second=450.0))
    runs.append({**run("sb3", "a2c", pong, "rate", 3), "error": "exit code 1"})
    cost = {"env": 0.0005, "inference": 0.0005, "training": 0.001, "envs": 8}
    machine = {"command": "python x", "cores": 2, "cpu": "a cpu", "python": "3.11"}
    machine |= {"load_average_before": 0.1, "commit": "abc"}
    costs = {"alone": cost, "all_cores": {**cost, "training": 0.0015}, "cores": 2}
    document = {"machine": machine, "versions": {"sb3": {"torch": "2"}}, "runs": runs}
    slow = {kind: dict.fromkeys(cost, 9.0) for kind in ("alone", "all_cores")}
    document["step_costs"] = {"0": costs, "1": {**costs, **slow}, "2": costs}
    return {**document, **report.summary(document)}


def test_ratios_are_best_against_best(document):
    ratios = document["ratios"]
    assert ratios["CartPole-v1 steps"] == pytest.approx(250_001 / 20_001)
    assert ratios["CartPole-v1 time"] == pytest.approx(3 / 30)
    assert ratios["ALE/Pong-v5 steps"] == 2.0
    assert document["ceiling"]["alone"] == pytest.approx(1000.0)
    assert ratios["ALE/Pong-v5 of ceiling"] == pytest.approx(0.9)
    assert document["ceiling"]["all_cores"] == pytest.approx(800.0)


def test_the_written_page_is_what_the_code_says():
    def text(page):
        return page.partition(report.BEGIN)[0]

    written = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert text(written) == text(report.page()), "run: python docs/generate.py"


def test_the_rate_is_that_of_the_window():
    # Slow at first, 100 steps/s from second 3 on, nothing after second 10.
    marks = [(0.0, 10.0), (1.0, 11.0), *((3.0 + k, 20.0 + 100.0 * k) for k in range(8))]
    marks.append((60.0, 721.0))
    assert referee.rate_of(marks, warm_up=3.0, seconds=5.0) == pytest.approx(100.0)
    assert referee.rate_of(marks, warm_up=0.0, seconds=1.5) == pytest.approx(10.0 / 3.0)
    assert referee.rate_of(marks[:1], warm_up=0.0, seconds=5.0) is None
    assert referee.rate_of([], warm_up=0.0, seconds=5.0) is None


@pytest.fixture
def judge(monkeypatch, tmp_path):
    monkeypatch.setenv(referee.STAMP_VARIABLE, str(tmp_path / "stamp"))
    given = argparse.Namespace(mode="score", seed=0, warm_up=1.0, seconds=2.0, limit=1e9)
    given.target = 475.0
    return referee.Referee(given)


def test_a_score_needs_fresh_episodes(judge):
    judge.finished([500.0] * 99)
    assert not judge.wants_evaluation()
    judge.finished([500.0])
    assert judge.wants_evaluation()
    judge.evaluated(474.0)
    assert not judge.is_over()
    judge.finished([500.0] * 99)
    assert not judge.wants_evaluation()  # 100 episodes between two looks
    judge.finished([500.0])
    assert judge.wants_evaluation()
    judge.evaluated(475.0)
    assert judge.is_over()
    result = judge.report()
    assert result["seconds_to_crossing"] < result["seconds_to_target"]
