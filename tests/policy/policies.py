# SPDX-License-Identifier: Apache-2.0
"""Policies of every head and space with weights that nobody trained."""

from dataclasses import replace

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from veldt.environments import Interface
from veldt.environments.spaces import action_spec, leaf_readers, stacked
from veldt.networks import NetworkFactory, NetworkOptions
from veldt.policy import TrainedPolicy
from veldt.types import EnvironmentSpec, Parameters

VECTOR = spaces.Box(-np.inf, np.inf, (4,))
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (12, 10, 3), np.uint8),
        "gear": spaces.Discrete(5, start=1),
        "inner": spaces.Dict(
            {"joints": spaces.Box(-1, 1, (2, 3)), "switches": spaces.MultiBinary(3)}
        ),
        "slots": spaces.MultiDiscrete([3, 70]),
    }
)
ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
NORMALIZED = NetworkOptions(normalize_observations=True)

CASES = {
    "discrete": ("policy_value", VECTOR, spaces.Discrete(3, start=-1), NORMALIZED, {}),
    "nested": ("policy_value", NESTED, spaces.Discrete(4), NORMALIZED, {}),
    "masked": (
        "policy_value",
        VECTOR,
        spaces.MultiDiscrete([3, 2], start=[1, 0]),
        NetworkOptions(),
        {"mask": 5},
    ),
    "multi_binary": ("policy_value", VECTOR, spaces.MultiBinary(4), NetworkOptions(), {}),
    "unequal": ("policy_value", VECTOR, spaces.MultiDiscrete([2, 4, 3]), NetworkOptions(), {}),
    "tanh": ("policy_value", VECTOR, ARM, NORMALIZED, {}),
    "gaussian": ("policy_value", VECTOR, spaces.Box(-np.inf, np.inf, (2, 2)), NORMALIZED, {}),
    "lstm": ("policy_value", VECTOR, spaces.Discrete(3), NetworkOptions(recurrent="lstm"), {}),
    "gru": (
        "policy_value",
        VECTOR,
        ARM,
        NetworkOptions(recurrent="gru", last_action_and_reward=True),
        {},
    ),
    "stacked": ("policy_value", VECTOR, spaces.Discrete(3), NORMALIZED, {"stack": 3}),
    "stacked_images": (
        "q",
        spaces.Box(0, 255, (14, 14), np.uint8),
        spaces.Discrete(3),
        NetworkOptions(),
        {"stack": 2},
    ),
    "q": ("q", VECTOR, spaces.Discrete(3), NetworkOptions(), {"mask": 3}),
    "dueling": ("q", VECTOR, spaces.Discrete(3), NetworkOptions(dueling=True), {}),
    "r2d2": (
        "q",
        spaces.Tuple([VECTOR, spaces.Discrete(4)]),
        spaces.Discrete(3),
        NetworkOptions(dueling=True, recurrent="lstm", last_action_and_reward=True),
        {},
    ),
    "dpg": ("dpg", VECTOR, ARM, NORMALIZED, {}),
    "sac": ("sac", VECTOR, ARM, replace(NORMALIZED, activation="relu"), {}),
    "td3": ("td3", spaces.Box(0, 255, (20, 20, 1), np.uint8), ARM, NetworkOptions(), {}),
}


def policy_of(name: str) -> TrainedPolicy:
    head, observation, action, options, more = CASES[name]
    depth = more.get("stack", 1)
    leaves = tuple(stacked(reader.leaf, depth) for reader in leaf_readers(observation, False))
    spec = EnvironmentSpec(name, leaves, action_spec(action), more.get("mask", 0))
    network = NetworkFactory(options, spec, head, seed=3)
    random = np.random.default_rng(1)
    vector = network.initial_vector()
    vector += random.standard_normal(vector.size, dtype=np.float32) * 0.1
    vector[network.num_trained() :] = np.abs(vector[network.num_trained() :]) + 0.5
    return TrainedPolicy(
        network,
        Parameters(vector, 0),
        Interface(observation, action, False, depth),
        architecture="test",
        env=name,
        env_steps=0,
    )


def batches(policy: TrainedPolicy, count: int, width: int = 4) -> list:
    """Batched observations, drawn from the space."""
    space = batch_space(policy.observation_space, width)
    space.seed(5)
    return [space.sample() for _ in range(count)]


def rows_of(policy: TrainedPolicy, batch, width: int = 4) -> list:
    return list(iterate(batch_space(policy.observation_space, width), batch))


def mask_of(policy: TrainedPolicy, random: np.random.Generator, width: int) -> np.ndarray | None:
    size = CASES[policy.env][4].get("mask", 0)
    if not size:
        return None
    mask = random.random((width, size)) < 0.5
    mask[:, [0, size - 1]] = True  # in each part of it something is allowed
    return mask
