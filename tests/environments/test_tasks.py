# SPDX-License-Identifier: Apache-2.0
"""Several environments for one network: union of spaces, masks, returns of each task."""

import gymnasium
import numpy as np
import pytest

import veldt
from veldt.dashboard import charts
from veldt.dashboard.reading import RunReader
from veldt.environments import EnvironmentFactory
from veldt.environments.atari import reference_scores
from veldt.environments.tasks import scores_by_task
from veldt.errors import ConfigurationError


class Constant(gymnasium.Env):
    """Episodes of two steps; each gives a reward that names the task."""

    def __init__(self, channels, actions, reward):
        self.observation_space = gymnasium.spaces.Box(0, 9, (4, 4, channels), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(actions)
        self._channels, self._reward, self._steps = channels, reward, 0

    def _observation(self):
        return np.full((4, 4, self._channels), self._channels, np.uint8)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._steps += 1
        return self._observation(), self._reward, self._steps == 2, False, {}


def narrow():
    return Constant(2, 2, 1.0)


def wide():
    return Constant(3, 4, 10.0)


BOTH = f"{__name__}:narrow,{__name__}:wide"


def test_missing_channels_are_zero_and_missing_actions_masked():
    environment = EnvironmentFactory(BOTH, task_input=True).make(4, 0)
    environment.reset()
    seen = environment.observations
    image, mask = seen["observation.image"], seen["action_mask"]
    np.testing.assert_array_equal(seen["observation.task"], [0, 1, 0, 1])
    assert image.shape == (4, 3, 4, 4)
    np.testing.assert_array_equal(image[0::2].max((0, 2, 3)), [2, 2, 0])
    np.testing.assert_array_equal(image[1::2].min((0, 2, 3)), [3, 3, 3])
    np.testing.assert_array_equal(mask[:2], [[1, 1, 0, 0], [1, 1, 1, 1]])
    found: dict[str, list[float]] = {}
    random = np.random.default_rng(0)
    for _ in range(9):  # three episodes: two steps and a reset row each
        for name, values in environment.step(
            environment.random_actions(random)
        ).episode_info.items():
            found.setdefault(name, []).extend(values)
    assert found == {f"return/{__name__}:narrow": [2.0] * 6, f"return/{__name__}:wide": [20.0] * 6}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (f"{__name__}:narrow,CartPole-v1", "only the channels of images"),
        (f"{__name__}:narrow,Pendulum-v1", "need Discrete actions"),
        (f"{__name__}:narrow,ALE/Pong-v5", "cannot be one of several tasks"),
        ("CartPole-v1", "task_input needs several tasks"),
    ],
)
def test_a_wrong_mix_ends_with_one_line(env, message):
    with pytest.raises(ConfigurationError, match=message):
        EnvironmentFactory(env, task_input=True).spec()


def test_scores_are_those_of_each_task_and_normalised_where_references_are_known():
    found = scores_by_task(("MinAtar/Breakout-v1", "other"), np.array([1.0, 5.0, 3.0, 7.0]))
    assert found["other"] == {"mean": 6.0, "normalized": None}
    assert found["Breakout-v1"]["mean"] == 2.0
    random, expert = reference_scores()["MinAtar/Breakout-v1"]
    wanted = pytest.approx((2.0 - random) / (expert - random))
    assert found["Breakout-v1"]["normalized"] == wanted


@pytest.mark.parametrize("tells_task", [False, True])
def test_a_run_reports_each_task(tmp_path, tells_task):
    """Also after resume and when it is evaluated; 3 episodes are raised to one more for both."""
    result = veldt.train(
        "impala", BOTH, backend="serial", total_env_steps=400, evaluation_episodes=3, quiet=True,
        run_dir=str(tmp_path / "run"), envs_per_actor=2, wrappers={"task_input": tells_task},
    )  # fmt: skip
    expected = {"mean": 20.0, "normalized": None}
    assert result.evaluation_by_task[f"{__name__}:wide"] == expected
    drawn = charts.curve(RunReader(tmp_path / "run").read())["series"]
    assert set(BOTH.split(",")) < {series["name"] for series in drawn}
    image = np.zeros((4, 4, 3), np.uint8)
    seen = {"image": image, "task": 0} if tells_task else image
    assert veldt.load(tmp_path / "run").act(seen, mask=[False, True, False, False]) == 1
    resumed = veldt.resume(tmp_path / "run", total_env_steps=800, quiet=True)
    assert resumed.evaluation_by_task == result.evaluation_by_task
    evaluated = veldt.evaluate(tmp_path / "run", episodes=4)
    assert evaluated.by_task == result.evaluation_by_task
