# SPDX-License-Identifier: Apache-2.0
"""Stacked frames never mix episodes, final observations included."""

import gymnasium
import numpy as np
import pytest
from counting_environments import MODES, CountingEnvironment
from gymnasium import spaces

from veldt.environments import EnvironmentFactory

DEPTH, SEED, NUM_ENVS = 3, 2, 4


def painted() -> gymnasium.Env:
    """The counting environment as images [H, W, C]: channel 0 the episode, channel 1 the step."""
    space = spaces.Box(0, 255, (6, 5, 2), np.uint8)
    return gymnasium.wrappers.TransformObservation(
        CountingEnvironment(),
        lambda seen: np.broadcast_to(seen[:2].astype(np.uint8), space.shape),
        space,
    )


def stack_of(episode: int, count: int) -> list[tuple[int, int]]:
    """The last DEPTH (episode, step) pairs, the first one repeated; slow and obvious."""
    return [(episode, max(0, count - back)) for back in reversed(range(DEPTH))]


def pairs(stack: np.ndarray, image: bool) -> list[tuple[int, int]]:
    if image:
        assert (stack == stack[:, :1, :1]).all()
        frames = stack[:, 0, 0].reshape(DEPTH, 2)
    else:
        frames = stack.reshape(DEPTH, 3)
    return [(int(frame[0]), int(frame[1])) for frame in frames]


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("image", [False, True])
def test_stacks_hold_the_last_frames_of_one_episode(mode, image):
    env = painted if image else CountingEnvironment
    factory = EnvironmentFactory(MODES[mode](env), frame_stack=DEPTH)
    plain = EnvironmentFactory(MODES[mode](CountingEnvironment)).make(NUM_ENVS, SEED)
    environment = factory.make(NUM_ENVS, SEED)
    leaf = factory.spec().observation[0]
    assert leaf.shape == ((2 * DEPTH, 6, 5) if image else (3 * DEPTH,))
    environment.reset()
    plain.reset()
    finals = 0
    for _ in range(30):
        stacks = environment.observations["observation"]
        assert stacks.shape == (NUM_ENVS, *leaf.shape)
        assert stacks.dtype == leaf.dtype
        for stack, (episode, count, _) in zip(
            stacks, plain.observations["observation"], strict=True
        ):
            assert pairs(stack, image) == stack_of(int(episode), int(count))
        step = environment.step(np.zeros(NUM_ENVS, np.int64))
        truth = plain.step(np.zeros(NUM_ENVS, np.int64))
        if truth.final_observations is not None:
            for index in np.flatnonzero(truth.terminated | truth.truncated):
                episode, count, _ = truth.final_observations["final_observation"][index]
                stack = step.final_observations["final_observation"][index]
                assert pairs(stack, image) == stack_of(int(episode), int(count))
                finals += 1
    assert (finals > 5) == (mode != "next_step")
