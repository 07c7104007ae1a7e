# SPDX-License-Identifier: Apache-2.0
"""The small tasks give the scores that their documentation promises."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from veldt.environments import EnvironmentFactory


def mean_return(env, policy, num_episodes=400):
    environment = EnvironmentFactory(env).make(8, seed=0)
    environment.reset()
    returns = []
    while len(returns) < num_episodes:
        returns.extend(environment.step(policy(environment)).episode_returns)
    return np.mean(returns)


def chance():
    random = np.random.default_rng(1)
    return lambda environment: environment.random_actions(random)


def right_quarter(environment):
    seen = environment.observations
    image = seen["observation.seen.image"].sum(axis=1)  # [N, rows, columns]
    row, column = image.any(axis=2).argmax(axis=1), image.any(axis=1).argmax(axis=1)
    return (2 * (row // 4) + column // 4 + seen["observation.digit"]) % 4


def as_shown(environment):
    return environment.observations["observation"][:, 0].astype(np.int64)


def towards_the_ball(environment):
    board = environment.observations["observation"][:, 0]
    ball, paddle = board[:, :-1].any(axis=1).argmax(axis=1), board[:, -1].argmax(axis=1)
    return np.sign(ball - paddle) + 1


class Recall:
    """Remembers the cue of each environment."""

    def __init__(self):
        self.cue = np.zeros(8, dtype=np.int64)

    def __call__(self, environment):
        observation = environment.observations["observation"]
        self.cue = np.where(environment.first, observation[:, 0] > 0, self.cue)
        assert not observation[~environment.first, 0].any()
        return self.cue


@pytest.mark.parametrize(
    ("env", "best", "best_score", "chance_score"),
    [
        ("veldt/Memory-v0", Recall(), 1.0, 0.0),
        ("veldt/NestedDict-v0", right_quarter, 20.0, 5.0),
        ("veldt/Stairs-v0", as_shown, 1.0, 0.234),
        ("veldt/Catch-v0", towards_the_ball, 1.0, -0.6),
    ],
)
def test_best_and_chance_scores(env, best, best_score, chance_score):
    assert mean_return(env, best) == pytest.approx(best_score, abs=1e-5)
    assert mean_return(env, chance()) == pytest.approx(chance_score, abs=0.2)
    check_env(gymnasium.make(env).unwrapped, skip_render_check=True)
