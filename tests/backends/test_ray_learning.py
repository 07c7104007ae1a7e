# SPDX-License-Identifier: Apache-2.0
"""Real architectures make progress on Ray, and the barrier of A2C holds there too."""

from __future__ import annotations

import numpy as np
import pytest
from driving import MakeBackend, advance_until, counter

from veldt.architectures import load
from veldt.environments import EnvironmentFactory
from veldt.networks import NetworkConfig
from veldt.problem import Problem

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("architecture", ["impala", "a2c"])
def test_actors_and_learner_make_progress(architecture: str, make_backend: MakeBackend) -> None:
    environment = EnvironmentFactory("CartPole-v1")
    problem = Problem(
        environment,
        environment.spec(),
        NetworkConfig(),
        seed=1,
        num_actors=2 if architecture == "a2c" else 1,
        envs_per_actor=8,
    )
    module = load(architecture)
    topology = module.build(module.PRESETS["control"], problem)
    backend = make_backend("ray", topology)
    learner = [node.kind for node in topology.nodes].index("learner")
    before = backend.parameters("weights")
    backend.start()
    advance_until(backend, lambda: counter(backend, learner, "updates") >= 20, "updates")
    after = backend.parameters("weights")
    assert after.version >= 20
    assert np.abs(after.vector - before.vector).max() > 0.0
    assert counter(backend, 0, "env_steps") > 0
    backend.stop()
    if architecture == "a2c":
        assert backend.snapshots()[learner].lag.max == 0
    assert backend.parameters("weights").version >= after.version
