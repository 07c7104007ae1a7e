# SPDX-License-Identifier: Apache-2.0
"""Two learners that step together are one learner with the joined batch."""

import os
import signal
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from driving import advance_until
from network_specs import make_spec, vector
from wiring import context, counted

from veldt.backends import make_backend
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.optimizers import OptimizerOptions
from veldt.options import RunOptions
from veldt.ports import ExperienceSink, Gradient
from veldt.role import Role
from veldt.roles.gradients import GroupLeader, synchronous_group
from veldt.roles.learner import Learner
from veldt.run.plan import make_plan
from veldt.topology import Topology
from veldt.types import Batch, trajectory_layout

STEPS, ENVS, UPDATES = 3, 2, 5
SPEC = make_spec(vector(4))
OPTIMIZER = OptimizerOptions("rmsprop", 0.05, optimizer_epsilon=0.01, max_grad_norm=0.3)


def network(statistics=False):
    config = NetworkOptions(hidden_sizes=(8,), normalize_observations=statistics)
    return NetworkFactory(config, SPEC, "policy_value", seed=2)


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


@dataclass(eq=False)
class Feeder(Role):
    """Sends UPDATES trajectories of each of its sources, one after the other."""

    sink: ExperienceSink
    sources: list[int]

    def open(self, context):
        self._left = [(source, number) for number in range(UPDATES) for source in self.sources]

    def step(self):
        slot = self.sink.reserve() if self._left else None
        if slot is None:
            return False
        fill(slot.arrays, *self._left.pop(0))
        self.sink.commit(slot)
        return True


class SpyingLearner(Learner):
    """Keeps the weights it had after every update."""

    histories: ClassVar[dict] = {}  # serial nodes share this process, which is the point

    def open(self, context):
        super().open(context)
        self._history = self.histories[context.name] = []

    def _updated(self, version):
        super()._updated(version)
        self._history.append(self._flat.numpy().copy())


def histories(num_learners, reduction, statistics=False):
    """The weights of each learner after each update, from the same trajectories."""
    built = network(statistics)
    layout = trajectory_layout(SPEC, STEPS, ENVS, built.make().output_fields())
    topology = Topology(built)
    weights = topology.board("weights", built)
    loss = ActorCriticOptions(correction="none", reduction=reduction)
    sinks = synchronous_group(topology, weights, OPTIMIZER, num_learners, reduction)
    for index, gradients in enumerate(sinks):
        sources = [0, 1] if num_learners == 1 else [index]
        queue = topology.queue(f"trajectories-{index}", layout, 2)
        topology.add("feeder", Feeder(queue.sink, sources))
        topology.add(
            "learner",
            SpyingLearner(
                built,
                queue.source(slots_per_batch=len(sources)),
                ActorCritic(loss),
                gradients,
                weights.source(),
                None if index else weights.sink,
            ),
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
    assert np.abs(alone[-1] - network(statistics).initial_vector()).max() > 0.05
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


class Gradients:
    """A source of what followers sent."""

    def __init__(self, *sent):
        self._sent = list(sent)

    def take_batch(self):
        return Batch(self._sent.pop(0)) if self._sent else None

    def release(self, batch):
        pass


def gradient_of(learner, version, value):
    size = network().num_trained()
    return {
        "gradient": np.full(size, value, np.float32),
        "statistics": np.zeros(0),
        "about": np.array([learner, version, 6]),
    }


def leading(*sent, num_learners=2, incarnation=0):
    flat = FlatParameters(network().make())
    told = replace(context("learner-0"), incarnation=incarnation)
    sgd = OptimizerOptions("sgd", 1.0, momentum=0.0, max_grad_norm=0.0)
    leader = GroupLeader(sgd, Gradients(*sent), num_learners, "sum")
    leader.open(told, flat)
    return leader, flat, told


def test_a_gradient_of_another_version_is_left_out():
    sent = [gradient_of(1, 4, 2.0), gradient_of(1, 3, 50.0), gradient_of(1, 6, 9.0)]
    leader, flat, told = leading(*sent)
    ones, before = torch.ones(flat.num_trained), flat.vector.clone()
    assert leader.apply(Gradient(ones, 4, rows=6)) == 5
    torch.testing.assert_close(flat.vector, before - 3.0)
    assert leader.apply(Gradient(ones, 5, rows=6)) == 6  # the newer one waits for its version
    torch.testing.assert_close(flat.vector, before - 4.0)
    assert counted(told, "dropped.other_version") == 2
    assert leader.apply(Gradient(ones, 6, rows=6)) == 7
    torch.testing.assert_close(flat.vector, before - 14.0)


def test_a_member_that_sends_twice_does_not_stand_for_another():
    sent = [gradient_of(1, 4, 5.0), gradient_of(1, 4, 2.0), gradient_of(2, 4, 3.0)]
    leader, flat, _ = leading(*sent, num_learners=3)
    before = flat.vector.clone()
    assert leader.apply(Gradient(torch.ones(flat.num_trained), 4, rows=6)) == 5
    torch.testing.assert_close(flat.vector, before - 6.0)


def test_a_restarted_leader_releases_those_that_wait_for_its_predecessor():
    leader, _, _ = leading(incarnation=1)
    assert leader.begin(7) == 8
    assert leader.begin(8) == 8


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["learner-0", "learner-1"])
def test_a_group_survives_the_death_of_a_member(killed, tmp_path):
    options = RunOptions(env="CartPole-v1", backend="process", num_actors=2, envs_per_actor=4)
    backend = make_backend("process", make_plan("impala", options, {"num_learners": 2}).topology, 1)
    backend.run_dir = tmp_path
    backend.start()

    def advance_by_updates(number):
        last = backend.parameters("weights").version + number
        advance_until(backend, lambda: backend.parameters("weights").version >= last, "updates")

    try:
        for kills in range(1, 4):
            advance_by_updates(20)
            os.kill(backend.process_ids()[killed], signal.SIGKILL)
            advance_until(backend, lambda kills=kills: backend.restarts == kills, "a restart")
        advance_by_updates(20)
    finally:
        backend.stop()
