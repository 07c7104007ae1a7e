# SPDX-License-Identifier: Apache-2.0
"""Real architectures make progress on Ray, and the barrier of A2C holds there too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from driving import MakeBackend, advance_until, counter

from veldt.architectures import load
from veldt.backends.base import captured
from veldt.checkpoints.store import CheckpointStore
from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.networks import NetworkOptions
from veldt.options.fields import changed
from veldt.problem import Problem
from veldt.topology import Topology

pytestmark = pytest.mark.slow


def cart_pole(num_actors: int, **network: object) -> Problem:
    environment = EnvironmentFactory("CartPole-v1")
    config = NetworkOptions(**network)
    return Problem(environment, environment.spec(), config, 1, num_actors, envs_per_actor=8)


@pytest.mark.parametrize("architecture", ["impala", "a2c"])
def test_actors_and_learner_make_progress(architecture: str, make_backend: MakeBackend) -> None:
    problem = cart_pole(num_actors=2 if architecture == "a2c" else 1)
    module = load(architecture)
    topology = module.build(module.presets["control"], problem)
    backend = make_backend("ray", topology, timeline_seconds=5.0)
    learner = [node.kind for node in topology.nodes].index("learner")
    before = backend.parameters("weights")
    backend.start()
    advance_until(backend, lambda: counter(backend, learner, "updates") >= 20, "updates")
    after = backend.parameters("weights")
    assert after.version >= 20
    assert np.abs(after.vector - before.vector).max() > 0.0
    assert counter(backend, 0, "env_steps") > 0
    spans = backend.take_spans()
    assert set(spans) == {node.name for node in topology.nodes}
    learned = spans["learner-0"]
    assert np.count_nonzero(learned.index == learned.stages.index("learn")) >= 20
    backend.stop()
    if architecture == "a2c":
        assert backend.snapshots()[learner].lag.max == 0
    assert backend.parameters("weights").version >= after.version


def test_agents_may_not_ask_predictors_in_another_process(make_backend: MakeBackend) -> None:
    module = load("ga3c")
    topology = module.build(module.presets["control"], cart_pole(num_actors=1))
    with pytest.raises(ConfigurationError, match="ask and answer in the memory of 'prediction'"):
        make_backend("ray", topology)


def test_agents_without_a_model_ask_predictors_in_their_own_process(
    make_backend: MakeBackend, tmp_path: Path
) -> None:
    """GA3C with a recurrent state, all of it in one process; and it can be continued."""
    module = load("ga3c")
    problem = cart_pole(num_actors=1, recurrent="lstm", recurrent_size=8)
    config = changed(module.presets["control"], most_agents=2, most_trainers=2, annealing=False)
    topology = in_one_process(module.build(config, problem))
    kinds = [node.kind for node in topology.nodes]
    trainers = [place for place, kind in enumerate(kinds) if kind == "trainer"]
    backend = make_backend("ray", topology)
    before = backend.parameters("weights")
    assert before.version == 0
    backend.start()

    def updates() -> float:
        return sum(counter(backend, trainer, "updates") for trainer in trainers)

    advance_until(backend, lambda: updates() >= 10, "updates")
    after = backend.parameters("weights")
    assert after.version >= 10
    assert np.abs(after.vector - before.vector).max() > 0.0
    assert counter(backend, kinds.index("agent") + 1, "env_steps") == 0, "told to rest"
    path = CheckpointStore(tmp_path).save(1, captured(backend), {})
    backend.stop()
    assert backend.parameters("weights").version >= after.version

    successor = make_backend("ray", in_one_process(module.build(config, problem)))
    successor.restore(path, generation=1)
    assert successor.parameters("weights").version >= after.version


def in_one_process(topology: Topology) -> Topology:
    topology.colocated.clear()
    topology.colocate(*topology.nodes, threads=True)
    return topology
