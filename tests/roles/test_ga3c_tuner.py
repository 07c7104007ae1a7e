# SPDX-License-Identifier: Apache-2.0
"""The climbers behind GA3C's annealing and --autotune, on landscapes whose top is known."""

from __future__ import annotations

import numpy as np

from veldt.roles.ga3c_tuner import HillClimber, by_one, climb


def landscape(setting):
    """Best at agents 4, trainers 2; every step away costs."""
    return 100.0 - 10 * abs(setting["agents"] - 4) - 10 * abs(setting["trainers"] - 2)


def climber(seed=0, start=None, most=None):
    start = start or {"agents": 2, "trainers": 1}
    return HillClimber(
        dict(start), np.random.default_rng(seed), by_one(most or {"agents": 8, "trainers": 4})
    )


def test_a_rejected_change_is_restored_before_the_next_is_tried():
    tuner = climber()
    tuner.observe(landscape(tuner.setting))
    for _ in range(60):
        before, tried = dict(tuner.accepted), dict(tuner.setting)
        verdict = tuner.observe(landscape(tried))
        assert verdict.setting == tried
        assert verdict.kept == (verdict.throughput >= verdict.previous)
        assert tuner.accepted == (tried if verdict.kept else before)
    assert any(not verdict.kept for verdict in tuner.log)


def test_annealing_changes_one_count_by_one_and_reaches_the_top():
    tuner = climber(seed=3)
    for _ in range(200):
        accepted = dict(tuner.accepted)
        tuner.observe(landscape(tuner.setting))
        moved = {name: abs(tuner.setting[name] - tuner.accepted[name]) for name in accepted}
        assert sorted(moved.values()) == [0, 1]
    assert tuner.accepted == {"agents": 4, "trainers": 2}


def test_no_count_goes_below_one_or_above_the_most():
    tuner = climber(seed=1, start={"agents": 1, "trainers": 1}, most={"agents": 2, "trainers": 1})
    for _ in range(100):
        tuner.observe(float(np.random.default_rng(len(tuner.log)).random()))
        assert 1 <= tuner.setting["agents"] <= 2
        assert tuner.setting["trainers"] == 1


def test_climb_walks_to_the_top_and_logs_every_trial():
    seen = []

    def measure(setting):
        seen.append(dict(setting))
        return landscape(setting)

    start = {"agents": 1, "trainers": 1}
    best, log = climb(start, lambda name, value: (value + 1, value - 1), measure, max_trials=50)
    assert best == {"agents": 4, "trainers": 2}
    assert [trial.setting for trial in log] == seen[1:]
    assert len({tuple(setting.items()) for setting in seen}) == len(seen), (
        "a setting was tried twice"
    )


def test_climb_does_not_follow_noise():
    noise = iter([100.0, 101.0, 102.0, 99.0, 101.5])
    best, log = climb({"n": 4}, lambda _, v: (v * 2, v // 2), lambda _: next(noise), max_trials=4)
    assert best == {"n": 4}
    assert not any(trial.kept for trial in log)


def test_climb_stops_after_its_trials():
    _, log = climb({"n": 1}, lambda _, v: (v + 1,), lambda s: float(s["n"] * 2), max_trials=5)
    assert len(log) == 5
