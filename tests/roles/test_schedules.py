# SPDX-License-Identifier: Apache-2.0
"""Schedules at their corners, and the ladder against the published one."""

import numpy as np
import pytest

from veldt.roles.policies.selection import epsilon_ladder, linear


@pytest.mark.parametrize(
    ("now", "expected"), [(-5, 1.0), (0, 1.0), (50, 0.55), (100, 0.1), (10**9, 0.1)]
)
def test_linear_moves_between_its_ends_and_stays_there(now, expected):
    assert linear(1.0, 0.1, 100, now) == pytest.approx(expected)


def test_no_horizon_means_the_end_value():
    assert linear(1.0, 0.1, 0, 0) == 0.1


def test_ladder_is_base_to_the_power_one_to_eight():
    rungs = [epsilon_ladder(i, 360) for i in range(360)]
    np.testing.assert_allclose(rungs, 0.4 ** np.linspace(1, 8, 360))
    np.testing.assert_allclose(epsilon_ladder(np.arange(360), 360), rungs)


def test_a_single_actor_takes_the_first_rung():
    assert epsilon_ladder(0, 1) == 0.4
