# SPDX-License-Identifier: Apache-2.0
"""Every kind of spaces and the family it belongs to."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from veldt.environments import EnvironmentFactory
from veldt.environments.spaces import action_spec, leaf_readers
from veldt.families import FAMILIES, family, preset_names
from veldt.types import EnvironmentSpec

DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
BYTES = spaces.Box(0, 255, (9,), np.uint8)
BITS = spaces.Box(0, 1, (7, 7, 2), np.uint8)
MINATAR = spaces.Box(0.0, 1.0, (10, 10, 4), bool)
SMALL = spaces.Box(0, 255, (8, 8, 3), np.uint8)
FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
RAW = spaces.Box(0, 255, (210, 160, 3), np.uint8)
TABLE = [
    (VECTOR, DISCRETE, "vectors"),
    (VECTOR, spaces.MultiDiscrete([2, 3]), "vectors"),
    (VECTOR, BOX, "continuous"),
    (spaces.Box(-1.0, 1.0, (8,), np.float32), BOX, "continuous"),
    (spaces.Box(-1.0, 1.0, (9,), np.float32), BOX, "continuous_wide"),
    (BYTES, DISCRETE, "vectors"),
    (spaces.Discrete(500), DISCRETE, "vectors"),
    (spaces.MultiDiscrete([2, 3]), BOX, "continuous"),
    (spaces.Box(-1.0, 1.0, (5, 5), np.float32), DISCRETE, "vectors"),
    (MINATAR, DISCRETE, "grids_wide"),
    (spaces.Dict(image=MINATAR, task=DISCRETE), DISCRETE, "grids_wide"),
    (BITS, DISCRETE, "grids"),
    (spaces.Dict(map=MINATAR, speed=VECTOR), DISCRETE, "small_images"),
    (SMALL, DISCRETE, "small_images"),
    (SMALL, BOX, "small_images"),
    (spaces.Tuple((VECTOR, spaces.Discrete(4))), DISCRETE, "vectors"),
    (spaces.Dict(flags=BYTES, speed=VECTOR), BOX, "continuous_wide"),
    (FRAMES, DISCRETE, "atari"),
    (RAW, DISCRETE, "atari"),
    (spaces.Box(0, 255, (96, 96, 3), np.uint8), BOX, "atari"),
    (spaces.Dict(map=MINATAR, camera=RAW, speed=VECTOR), DISCRETE, "atari"),
]


def spec_of(observation: gymnasium.Space, action: gymnasium.Space) -> EnvironmentSpec:
    leaves = tuple(reader.leaf for reader in leaf_readers(observation, with_mask=False))
    return EnvironmentSpec("test", leaves, action_spec(action))


@pytest.mark.parametrize(("observation", "action", "expected"), TABLE)
def test_spaces_decide_the_family(observation, action, expected):
    spec = spec_of(observation, action)
    assert expected in FAMILIES
    assert family(spec) == expected
    assert family(spec, "lstm") == family(spec, "gru") == expected + "_recurrent"


def test_games_in_which_nothing_is_hidden_are_a_family_by_name():
    spec = EnvironmentFactory("veldt:tic_tac_toe").spec()
    assert family(spec) == "perfect_information" in FAMILIES
    assert preset_names(family(spec)) == ["perfect_information", "control"]
    assert family(EnvironmentFactory("veldt:leduc").spec()) == "vectors"


def test_presets_are_looked_for_from_the_family_to_the_general():
    assert preset_names("atari") == ["atari", "paper"]
    assert preset_names("atari", device="cpu") == ["atari_on_cpu", "atari", "paper"]
    assert preset_names("vectors", device="cpu") == ["vectors", "control"]
    assert preset_names("grids_wide") == ["grids_wide", "grids", "small_images", "control"]
    assert preset_names("continuous_wide_recurrent") == [
        "continuous_wide_recurrent",
        "continuous_wide",
        "continuous_recurrent",
        "continuous",
        "control",
    ]


@pytest.mark.parametrize(("space", "dtype"), [(BITS, "bool"), (MINATAR, "bool"), (SMALL, "uint8")])
def test_zeros_and_ones_are_images_without_a_scale(space, dtype):
    (leaf,) = spec_of(space, DISCRETE).observation
    shape = (space.shape[2], *space.shape[:2])
    assert (leaf.kind, leaf.dtype, leaf.shape) == ("image", dtype, shape)
