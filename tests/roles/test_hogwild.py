# SPDX-License-Identifier: Apache-2.0
"""Lock-free updates: one address for all workers, exact counts, truthful lag."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from driving import advance_until
from wiring import FactoryOf

from veldt.backends import make_backend
from veldt.backends.process import forkserver
from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerOptions, make_optimizer, state_size
from veldt.ports import Gradient, GradientSink
from veldt.role import Role
from veldt.roles import hogwild
from veldt.roles.hogwild import Hogwild, HogwildOptions, SharedModel, hogwild_workers
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Topology

SIZE, ROUNDS = 5, 6
OPTIMIZER = OptimizerOptions(
    "rmsprop", 0.1, rmsprop_decay=0.9, optimizer_epsilon=0.1, max_grad_norm=0.0
)


def make_module():
    module = torch.nn.Linear(SIZE, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    return module


def gradient_of(worker, turn):
    return torch.arange(1.0, SIZE + 1) * (1 + worker) * (-1) ** turn


def sent(worker, turn, version=0):
    return Gradient(gradient_of(worker, turn), version)


def make_context(name="learner-0"):
    return NodeContext(name, 0, seed=1, telemetry=NodeTelemetry())


@dataclass(eq=False)
class TurnTaker(Role):
    """Applies a gradient whenever the number of all updates says that it is this worker's turn."""

    sink: GradientSink
    worker: int
    num_workers: int

    def open(self, context):
        self.sink.open(context, FlatParameters(make_module()))
        self._done = context.telemetry.counter("done")

    def step(self):
        turn = self.sink.newest_version(0)
        if turn >= ROUNDS or turn % self.num_workers != self.worker:
            return False
        self.sink.apply(sent(self.worker, turn, turn))
        self._done.add()
        return True


def turn_takers(shared_statistics=True):
    network = FactoryOf(make_module)
    topology = Topology(network)
    options = HogwildOptions(shared_statistics=shared_statistics)
    for worker, sink in enumerate(hogwild_workers(topology, network, OPTIMIZER, options, 2)):
        topology.add("worker", TurnTaker(sink, worker, 2))
    return topology


@pytest.mark.parametrize("name", ["serial", "process"])
def test_weights_and_statistics_live_at_one_address_for_all_workers(name):
    """Two workers in turn leave exactly what one optimizer does that sees all gradients."""
    forkserver.warm_up()
    backend = make_backend(name, turn_takers(), 1)
    try:
        backend.start()
        advance_until(backend, lambda: backend.parameters("weights").version >= ROUNDS, "updates")
        weights = backend.parameters("weights")
        done = [snapshot.counters["done"] for snapshot in backend.snapshots()]
    finally:
        backend.stop()
    vector = torch.zeros(SIZE)
    alone = make_optimizer(OPTIMIZER, vector)
    for turn in range(ROUNDS):
        alone.step(gradient_of(turn % 2, turn))
    assert done == [ROUNDS / 2, ROUNDS / 2]
    np.testing.assert_array_equal(weights.vector, vector.numpy())


def workers_in_this_process(num_workers, shared_statistics):
    model = SharedModel(np.zeros(SIZE, np.float32), np.zeros((num_workers + 1) * 8, np.int64))
    statistics = np.zeros(state_size(OPTIMIZER, SIZE), np.float32)
    made = []
    for worker in range(num_workers):
        flat = FlatParameters(make_module())
        sink = Hogwild(OPTIMIZER, model, worker, statistics if shared_statistics else None)
        sink.open(make_context(), flat)
        made.append((flat, sink))
    return model.weights, statistics, made


def test_a_copy_on_a_device_ends_with_the_run_that_used_it():
    weights, device = np.zeros(SIZE, np.float32), torch.device("meta")
    address, copy = weights.ctypes.data, hogwild._resident(weights, device)
    assert hogwild._resident(weights, device) is copy is hogwild._ON_DEVICE[address]
    del copy
    assert address not in hogwild._ON_DEVICE, "a later run may have its weights at this address"


def test_statistics_of_its_own_see_only_the_workers_own_gradients():
    _, _, [(_, first), (_, second)] = workers_in_this_process(2, shared_statistics=False)
    first.apply(sent(0, 0))
    second.apply(sent(1, 1))
    for sink, gradient in ((first, gradient_of(0, 0)), (second, gradient_of(1, 1))):
        expected = 0.1 * gradient.square()
        np.testing.assert_allclose(sink.state()["optimizer"][:SIZE], expected, rtol=1e-6)


def test_a_version_counts_all_workers_and_lag_is_what_the_others_did_meanwhile():
    weights, _, [(flat, first), (_, second)] = workers_in_this_process(2, shared_statistics=True)
    version = first.apply(sent(0, 0))
    assert version == 1
    np.testing.assert_array_equal(flat.numpy(), weights)
    copied = flat.numpy().copy()
    for _ in range(3):
        second.apply(sent(1, 1))
    np.testing.assert_array_equal(flat.numpy(), copied)
    assert first.newest_version(version) - version == 3
    assert first.apply(sent(0, 0, version)) == 5
