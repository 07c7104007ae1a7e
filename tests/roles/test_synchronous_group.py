# SPDX-License-Identifier: Apache-2.0
"""Two learners that step together are one learner with the joined batch."""

from functools import partial

import numpy as np
import pytest
import torch

from veldt.backends import make_backend
from veldt.networks import FlatParameters, NetworkConfig, make_network
from veldt.objectives.actor_critic import ActorCritic, ActorCriticSettings
from veldt.optimizers import OptimizerConfig
from veldt.roles.gradients.synchronous_group import synchronous_group
from veldt.roles.learner import Learner
from veldt.topology import Topology
from veldt.types import ActionSpec, EnvironmentSpec, ObservationLeaf, trajectory_layout

STEPS, ENVS, UPDATES = 3, 2, 5
SPEC = EnvironmentSpec(
    "Test-v0",
    (ObservationLeaf("observation", (4,), "float32", "vector"),),
    ActionSpec("discrete", (3,)),
)
OPTIMIZER = OptimizerConfig("rmsprop", learning_rate=0.05, max_grad_norm=0.3)


def network(statistics=False):
    config = NetworkConfig(hidden_sizes=(8,), normalize_observations=statistics)
    return make_network(config, SPEC, "policy_value", seed=2)


def fill(arrays, source, number):
    """What producer `source` sends as its trajectory `number`: every one has other reset rows."""
    draw = np.random.default_rng([source, number])
    for name, array in arrays.items():
        if array.dtype == np.float32:
            array[:] = draw.normal(size=array.shape)
        elif name == "ignored":
            array[:] = draw.random(array.shape) < 0.15 + 0.4 * source
        elif name == "action":
            array[:] = draw.integers(3, size=array.shape)
        else:
            array[:] = 0


class Feeder:
    """Sends UPDATES trajectories of each of its sources, one after the other."""

    def __init__(self, context, *, sink, sources):
        self._sink = sink
        self._left = [(source, number) for number in range(UPDATES) for source in sources]

    def step(self):
        slot = self._sink.reserve() if self._left else None
        if slot is None:
            return False
        fill(slot.arrays, *self._left.pop(0))
        self._sink.commit(slot)
        return True

    def state(self):
        return {}

    def load_state(self, state): ...


class SpyingLearner(Learner):
    """Keeps the weights it had after every update."""

    histories: dict = {}  # noqa: RUF012 - serial nodes share this process, which is the point

    def __init__(self, context, **arguments):
        super().__init__(context, **arguments)
        self._history = self.histories[context.name] = []

    def _updated(self, version):
        super()._updated(version)
        self._history.append(self._flat.numpy().copy())


def histories(num_learners, reduction, statistics=False):
    """The weights of each learner after each update, from the same trajectories."""
    built = network(statistics)
    layout = trajectory_layout(SPEC, STEPS, ENVS, built.output_fields())
    initial = FlatParameters(built)
    topology = Topology("group", make_network=partial(network, statistics))
    weights = topology.board("weights", initial.numpy())
    settings = ActorCriticSettings(correction="none", reduction=reduction)
    sinks = synchronous_group(topology, weights, built, OPTIMIZER, num_learners, reduction)
    for index, (gradients, port) in enumerate(sinks):
        sources = range(2) if num_learners == 1 else [index]
        queue = topology.queue(f"trajectories-{index}", layout, 2)
        topology.add("feeder", Feeder, sink=queue.sink, sources=sources)
        topology.add(
            "learner",
            SpyingLearner,
            source=queue.source(slots_per_batch=len(sources)),
            weights=None if index else weights.sink,
            initial=weights.source(),
            make_network=partial(network, statistics),
            make_objective=lambda own: ActorCritic(own, settings),
            gradients=gradients,
            gradient_port=port,
        )
    SpyingLearner.histories = {}
    backend = make_backend("serial", topology, 1)
    backend.start()
    backend.advance(0.0)
    updates = [s.counters["updates"] for s in backend.snapshots() if "updates" in s.counters]
    final = backend.parameters("weights")
    backend.stop()
    assert final.version == UPDATES
    assert sum(updates) == UPDATES  # a step of the group is one update, however many share it
    return [SpyingLearner.histories[name] for name in sorted(SpyingLearner.histories)]


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_two_learners_agree_after_every_step_and_equal_one_with_the_joined_batch(
    reduction, statistics
):
    [alone] = histories(1, reduction, statistics)
    first, second = histories(2, reduction, statistics)
    assert len(alone) == len(first) == len(second) == UPDATES
    for one, two, joined in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, joined, rtol=1e-4, atol=1e-5)
    assert np.abs(alone[-1] - FlatParameters(network(statistics)).numpy()).max() > 0.05
    again, _ = histories(2, reduction, statistics)
    np.testing.assert_array_equal(np.stack(first), np.stack(again))


def test_a_gradient_that_is_not_finite_stops_nobody(monkeypatch):
    """The round still ends, so the other learner does not wait for ever."""
    call = ActorCritic.__call__
    calls = []

    def poisoned(self, batch):
        calls.append(1)
        loss = call(self, batch)
        return loss._replace(total=loss.total * torch.nan) if len(calls) == 3 else loss

    monkeypatch.setattr(ActorCritic, "__call__", poisoned)
    first, second = histories(2, "mean")
    np.testing.assert_array_equal(first[-1], second[-1])
    assert np.isfinite(first[-1]).all()
    steps = np.diff(np.stack(first), axis=0)
    assert (np.abs(steps).max(axis=1) == 0).sum() == 1
