# SPDX-License-Identifier: Apache-2.0
"""Devices by name: each learner and each inference server goes where it was told to."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from veldt.errors import ConfigurationError
from veldt.options import RunOptions
from veldt.run.plan import make_plan


def plan(architecture, own=None, **options):
    return make_plan(architecture, RunOptions(**{"env": "CartPole-v1", **options}), own or {})


@pytest.mark.parametrize(
    ("architecture", "own", "options", "told"),
    [
        ("impala", {}, {"device": "cuda:7"}, "device is cuda:7, which is not on this machine"),
        ("impala", {}, {"device": "tpu"}, "use auto, cpu, cuda, cuda:1"),
        ("impala", {}, {"device": "cpu,cpu"}, "2 devices, but impala has 1 learners"),
        ("seed_rl", {}, {"device": "cpu,cpu,cpu"}, "then one for the inference server"),
        ("impala", {"num_learners": 3}, {"device": "cpu,cpu"}, "2 devices, but impala has 3"),
        ("ga3c", {}, {"device": "cpu,cpu,cpu,cpu,cpu"}, "shares one model on one device"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_before_the_start(architecture, own, options, told):
    with pytest.raises(ConfigurationError) as caught:
        plan(architecture, own, backend="serial", **options)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_learner_and_server_has_the_device_that_was_named():
    found = plan("impala", {"num_learners": 2}, backend="serial", device="cpu,cpu")
    assert [node.role.device() for node in found.topology.of("learner")] == ["cpu", "cpu"]
    found = plan("seed_rl", backend="serial", device="cpu,cpu")
    assert {node.role.device() for node in found.topology.nodes} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_learner_on_the_gpu_and_inference_on_the_cpu():
    found = plan("seed_rl", backend="serial", device="cuda:0,cpu")
    devices = {node.kind: node.role.device() for node in found.topology.nodes}
    assert devices["learner"] == "cuda:0"
    assert devices["inference"] == "cpu"


def test_the_learner_has_as_many_threads_as_the_environment_says(monkeypatch):
    monkeypatch.setattr("veldt.run.plan.usable_cores", lambda: 2)
    for asked, threads in (("8", 8), ("9", 8), ("none", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert plan("impala", backend="process").problem.compute.threads == threads
        assert plan("impala", backend="serial").problem.compute.threads == 1


@pytest.mark.parametrize(
    ("architecture", "env", "cores", "threads"),
    [
        ("ppo", "veldt/Catch-v0", 2, 2),
        ("ppo", "veldt/Catch-v0", 16, 8),
        ("ppo", "CartPole-v1", 16, 1),
        ("impala", "veldt/Catch-v0", 16, 1),
    ],
)
def test_a_learner_that_actors_wait_for_has_their_cores(
    architecture, env, cores, threads, monkeypatch
):
    """Where its network is large enough to be shared out; never on serial, which repeats itself."""
    monkeypatch.setattr("veldt.run.plan.usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    sizes = {"env": env, "num_actors": 1}
    assert plan(architecture, backend="process", **sizes).problem.compute.threads == threads
    assert plan(architecture, backend="serial", **sizes).problem.compute.threads == 1


@pytest.mark.parametrize(
    ("backend", "asked", "precision"),
    [
        ("process", "auto", "auto"),
        ("process", "float32", "float32"),
        ("serial", "auto", "float32"),
    ],
)
def test_serial_computes_images_as_every_machine_does(backend, asked, precision):
    planned = plan("impala", backend=backend, network_options={"image_precision": asked})
    assert planned.problem.shape.image_precision == precision


class Pictures(gymnasium.Env):
    """Large images, and rewards that somebody chose."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((64, 64, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((64, 64, 3), np.uint8), 10.0, True, False, {}


@pytest.mark.parametrize(
    ("architecture", "own", "env", "options", "clip"),
    [
        ("impala", {}, "ALE/Pong-v5", {}, 1.0),
        ("impala", {}, "ALE/Pong-v5", {"wrappers": {"reward_clip": 3.0}}, 3.0),
        ("r2d2", {"replay_sequences": 1000}, "ALE/Pong-v5", {}, None),
        ("impala", {}, Pictures, {}, None),
        ("impala", {}, Pictures, {"wrappers": {"reward_clip": 1.0}}, 1.0),
        ("impala", {}, "CartPole-v1", {}, None),
    ],
)
def test_rewards_are_clipped_in_atari_games_only(architecture, own, env, options, clip):
    planned = plan(architecture, own, env=env, backend="serial", **options)
    assert planned.problem.environment.reward_clip == clip
