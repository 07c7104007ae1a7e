# SPDX-License-Identifier: Apache-2.0
"""Every supported space becomes the declared leaves, and actions arrive unchanged."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from counting_environments import MODES
from gymnasium import spaces

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.types import ActionSpec


class Echo(gymnasium.Env):
    """Draws observations from its space, remembers them and the actions; episodes of 3 steps."""

    made: list["Echo"] = []  # noqa: RUF012

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.actions = []
        Echo.made.append(self)

    def _draw(self):
        self.last = self.current if hasattr(self, "current") else None
        self.current = self.observation_space.sample()
        return self.current

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.elapsed = 0
        return self._draw(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.elapsed += 1
        return self._draw(), 0.0, self.elapsed == 3, False, {}


def make(observation_space, action_space=None, num_envs=2, mode="next_step"):
    Echo.made.clear()
    factory = EnvironmentFactory(MODES[mode](partial(Echo, observation_space, action_space)))
    environment = factory.make(num_envs, seed=0)
    environment.reset()
    return environment, Echo.made[-num_envs:]


BOX = spaces.Box(-1.0, 1.0, (4,), np.float64)
NESTED = spaces.Dict(
    {
        "b": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(4))),
        "a": spaces.Box(0, 255, (8, 9, 3), np.uint8),
        "c": spaces.Dict({"grid": spaces.Box(-1.0, 1.0, (2, 3), np.float32)}),
        "d": spaces.MultiDiscrete([2, 3]),
    }
)
NESTED_LEAVES = {
    "observation.a": ((3, 8, 9), "uint8", "image", lambda o: np.moveaxis(o["a"], 2, 0)),
    "observation.b.0": ((), "int64", "discrete", lambda o: o["b"][0] - 5),
    "observation.b.1": ((4,), "float32", "vector", lambda o: o["b"][1]),
    "observation.c.grid": ((6,), "float32", "vector", lambda o: o["c"]["grid"].ravel()),
    "observation.d.0": ((), "int64", "discrete", lambda o: o["d"][0]),
    "observation.d.1": ((), "int64", "discrete", lambda o: o["d"][1]),
}


@pytest.mark.parametrize(
    ("space", "leaf", "expected"),
    [
        (BOX, ((4,), "float32", "vector"), lambda o: o.astype(np.float32)),
        (spaces.Box(-1.0, 1.0, (), np.float32), ((1,), "float32", "vector"), np.atleast_1d),
        (spaces.Box(0, 255, (128,), np.uint8), ((128,), "float32", "vector"), lambda o: o),
        (spaces.Box(0, 255, (4, 9, 9), np.uint8), ((4, 9, 9), "uint8", "image"), lambda o: o),
        (spaces.Box(0, 255, (7, 9), np.uint8), ((1, 7, 9), "uint8", "image"), lambda o: o[None]),
        (
            spaces.Box(0, 255, (4, 9, 8, 3), np.uint8),
            ((12, 9, 8), "uint8", "image"),
            lambda o: np.concatenate([np.moveaxis(frame, 2, 0) for frame in o]),
        ),
        (spaces.Discrete(7), ((), "int64", "discrete"), lambda o: o),
    ],
)
def test_one_leaf(space, leaf, expected):
    environment, envs = make(space)
    found = environment.spec.observation[0]
    assert (found.name, found.shape, found.dtype, found.kind) == ("observation", *leaf)
    for _ in range(5):
        array = environment.observations["observation"]
        assert array.dtype == found.dtype
        np.testing.assert_array_equal(array, [expected(env.current) for env in envs])
        environment.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("mode", list(MODES))
def test_nested_dict_and_tuple(mode):
    environment, envs = make(NESTED, mode=mode)
    leaves = {leaf.name: leaf for leaf in environment.spec.observation}
    assert leaves.keys() == NESTED_LEAVES.keys() == environment.observations.keys()
    assert leaves["observation.b.0"].categories == 3
    for _ in range(7):
        step = environment.step(np.zeros(2, np.int64))
        for name, (shape, dtype, kind, expected) in NESTED_LEAVES.items():
            assert (leaves[name].shape, leaves[name].dtype, leaves[name].kind) == (
                shape,
                dtype,
                kind,
            )
            array = environment.observations[name]
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, [expected(env.current) for env in envs])
            if mode != "next_step" and step.terminated.any():
                final = step.final_observations["final_" + name]
                assert final.dtype == dtype
                np.testing.assert_array_equal(final, [expected(env.last) for env in envs])


@pytest.mark.parametrize(
    ("space", "spec", "given", "received"),
    [
        (spaces.Discrete(3, start=1), ActionSpec("discrete", (3,)), [0, 2], [1, 3]),
        (
            spaces.MultiDiscrete([2, 3]),
            ActionSpec("multi_discrete", (2, 3), shape=(2,)),
            [[0, 2], [1, 1]],
            [[0, 2], [1, 1]],
        ),
        (
            spaces.Box(-2.0, 2.0, (1, 2), np.float32),
            ActionSpec("box", (), (-2.0, -2.0), (2.0, 2.0), (1, 2)),
            [[[0.5, 1.0]], [[-2.0, 0.0]]],
            [[[0.5, 1.0]], [[-2.0, 0.0]]],
        ),
    ],
)
def test_actions_reach_the_environment(space, spec, given, received):
    environment, envs = make(BOX, space)
    assert environment.spec.action == spec
    environment.step(np.array(given, dtype=spec.field_dtype))
    for env, action in zip(envs, received, strict=True):
        np.testing.assert_array_equal(env.actions[-1], action)
    random = np.random.default_rng(0)
    for _ in range(20):  # Echo refuses what its space does not contain
        environment.step(environment.random_actions(random))


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (spaces.Dict({"x": spaces.Text(3)}), spaces.Discrete(2), "'observation.x'.*unsupported"),
        (spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2), "'observation'.*unsupported"),
        (BOX, spaces.Box(0, 5, (2,), np.int32), "action space .* unsupported"),
        (BOX, spaces.Dict({"x": spaces.Discrete(2)}), "action space .* unsupported"),
    ],
)
def test_unsupported_spaces_are_refused(observation_space, action_space, message):
    options = {"observation_space": observation_space, "action_space": action_space}
    with pytest.raises(ConfigurationError, match=message):
        EnvironmentFactory(Echo, options).spec()
