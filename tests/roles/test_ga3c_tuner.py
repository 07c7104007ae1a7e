# SPDX-License-Identifier: Apache-2.0
"""The climber behind GA3C's tuner, on landscapes whose top is known."""

import numpy as np

from veldt.roles.ga3c_tuner import HillClimber


def landscape(setting):
    """Best at agents 4, trainers 2; every step away costs."""
    return 100.0 - 10 * abs(setting["agents"] - 4) - 10 * abs(setting["trainers"] - 2)


def climber(seed=0, start=None, most=None):
    start = start or {"agents": 2, "trainers": 1}
    most = most or {"agents": 8, "trainers": 4}
    return HillClimber(start, most, np.random.default_rng(seed))


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
    for number in range(100):
        tuner.observe(float(np.random.default_rng(number).random()))
        assert 1 <= tuner.setting["agents"] <= 2
        assert tuner.setting["trainers"] == 1
