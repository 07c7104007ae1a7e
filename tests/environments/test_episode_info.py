# SPDX-License-Identifier: Apache-2.0
"""Numbers in the info of ended episodes are read from every form that environments give it."""

import numpy as np
import pytest
from counting_environments import same_step_vector
from gymnasium.vector import SyncVectorEnv

from veldt.environments import EnvironmentFactory
from veldt.environments.small_tasks import StairsEnvironment
from veldt.environments.vector import numbers_of, read_episode_info
from veldt.telemetry.aggregate import EpisodeInfo
from veldt.telemetry.counters import MAX_INFOS, NodeTelemetry

OVER = np.array([True, False, True])


def test_numbers_of_one_environment():
    info = {
        "is_success": np.True_,
        "score": np.float32(2.5),
        "laps": np.array([3]),
        "episode": {"r": 9.0, "l": 4, "t": 0.1, "shaped": 7},
        "name": "maze",
        "path": np.zeros(4),
        "distance": float("nan"),
        "_hidden": 1,
        "action_mask": 1,
        3: 4,
        "huge": 10**400,
    }
    assert numbers_of(info) == {
        "is_success": 1.0, "score": 2.5, "laps": 3.0, "episode/shaped": 7.0
    }  # fmt: skip


@pytest.mark.parametrize(
    "info",
    [
        {"score": np.array([1.0, 5.0, 3.0])},
        {"score": np.array([1, 5, 3]), "_score": np.array([True, True, True])},
        {"score": np.array([1.0, None, 3], object)},
        {"final_info": {"score": np.array([1.0, 0, 3])}, "score": np.array([8, 8, 8])},
        {"veldt.episode_info": {0: {"score": 1.0}, 1: {"score": 5.0}, 2: {"score": 3.0}}},
    ],
)
def test_a_vector_says_the_same_in_many_forms(info):
    assert read_episode_info(info, OVER) == {"score": [1.0, 3.0]}


def test_a_mask_says_who_gave_it():
    given = np.array([False, True, True])
    info = {"score": np.array([0, 5, 3]), "_score": given, "env_id": np.arange(3)}
    info["episode"] = {"r": np.ones(3), "shaped": np.array([1.0, 2.0, 4.0]), "_shaped": given}
    assert read_episode_info(info, OVER) == {"score": [3.0], "episode/shaped": [4.0]}
    # A wrapper around a vector that resets within the step says it beside the final info.
    info = {"episode": info["episode"], "final_info": {"score": np.array([1, 2, 3])}}
    assert read_episode_info(info, OVER) == {"score": [1.0, 3.0], "episode/shaped": [4.0]}


@pytest.mark.parametrize(
    ("env", "vectorization"),
    [
        ("veldt/Stairs-v0", "in_process"),
        (lambda num_envs: SyncVectorEnv([StairsEnvironment] * num_envs), "auto"),
        (same_step_vector(StairsEnvironment), "auto"),
    ],
)
def test_every_adapter_delivers_the_last_info_of_an_episode(env, vectorization):
    factory = EnvironmentFactory(env, vectorization=vectorization)
    environment, random = factory.make(3, seed=1), np.random.default_rng(0)
    environment.reset()
    ended = 0
    for _ in range(30):
        step = environment.step(environment.random_actions(random))
        count = step.episode_returns.size
        ended += count
        assert bool(step.episode_info) == bool(count)
        if count:
            said = step.episode_info
            assert said["height"] == [4.0] * count
            # What was climbed is what was rewarded: the info is that of the right rows.
            assert np.allclose(np.array(said["episode/stairs"]) / 4, step.episode_returns)
            assert said["is_success"] == [float(total == 1) for total in step.episode_returns]
    environment.close()
    assert ended > 10


def test_names_are_bounded_and_a_successor_goes_on():
    node = NodeTelemetry()
    node.episode_info({"score": [1.0, 2.0], "x" * 60: [5.0]})
    node.episode_info({f"name {index}": [1.0] for index in range(2 * MAX_INFOS)})
    node = NodeTelemetry(memoryview(bytearray(node.to_bytes())))
    node.episode_info({"score": [6.0], "late": [1.0]})
    infos = node.snapshot().infos
    assert infos["score"] == (9.0, 3)
    assert infos["x" * 39] == (5.0, 1)
    assert len(infos) == MAX_INFOS


def test_means_are_over_the_last_episodes():
    node, other, infos = NodeTelemetry(), NodeTelemetry(), EpisodeInfo(window=4)
    node.episode_info({"score": [1.0, 1.0]})
    other.episode_info({"score": [4.0], "rare": [2.0]})
    infos.take([node.snapshot(), other.snapshot()])
    assert infos.means() == {"score": 2.0, "rare": 2.0}
    node.episode_info({"score": [0.0]})
    infos.take([node.snapshot(), other.snapshot()])
    assert infos.means()["score"] == 1.5
    node.episode_info({"score": [8.0] * 4})
    infos.take([node.snapshot(), other.snapshot()])
    assert infos.means() == {"score": 8.0, "rare": 2.0}
