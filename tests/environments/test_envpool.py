# SPDX-License-Identifier: Apache-2.0
"""EnvPool, where it is installed: reset rows and time limits."""

import numpy as np
import pytest

from veldt.environments import EnvironmentFactory

pytest.importorskip("envpool")


def test_cart_pole_rows():
    environment = EnvironmentFactory("envpool:CartPole-v1", time_limit=5).make(4, seed=1)
    environment.reset()
    assert environment.first.all()
    ended = np.zeros(4, dtype=bool)
    for _ in range(30):
        step = environment.step(environment.random_actions(np.random.default_rng(0)))
        np.testing.assert_array_equal(step.ignored, ended)
        np.testing.assert_array_equal(environment.first, ended)
        assert not step.reward[ended].any()
        assert (step.episode_lengths == 5).all()
        ended = step.terminated | step.truncated
    environment.close()
