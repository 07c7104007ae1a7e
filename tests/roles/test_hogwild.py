# SPDX-License-Identifier: Apache-2.0
"""Lock-free updates: one address for all workers, exact counts, truthful lag, and the ring."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from veldt.backends import make_backend
from veldt.backends.process import forkserver
from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerConfig, make_optimizer, state_size
from veldt.roles.gradients.hogwild import HogwildConfig, Ring, RingConfig, share_hogwild
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Topology
from veldt.types import Parameters

SIZE, ROUNDS = 5, 6
OPTIMIZER = OptimizerConfig("rmsprop", learning_rate=0.1, decay=0.9, epsilon=0.1)


def make_module():
    module = torch.nn.Linear(SIZE, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    return module


def gradient_of(worker, turn):
    return torch.arange(1.0, SIZE + 1) * (1 + worker) * (-1) ** turn


def make_context(name="learner-0"):
    return NodeContext(name, 0, seed=1, telemetry=NodeTelemetry())


class TurnTaker:
    """Applies a gradient whenever the number of all updates says that it is this worker's turn."""

    def __init__(self, context, *, sink, port, worker, num_workers):
        self._flat = FlatParameters(make_module())
        self._sink = sink(context, self._flat, port)
        self._worker, self._num_workers = worker, num_workers
        self._done = context.telemetry.counter("done")

    def step(self):
        turn = self._sink.newest_version(0)
        if turn >= ROUNDS or turn % self._num_workers != self._worker:
            return False
        self._sink.apply(gradient_of(self._worker, turn), turn)
        self._done.add()
        return True

    def state(self):
        return {}

    def load_state(self, state): ...


def turn_takers(shared_statistics=True):
    topology = Topology("turns", make_network=make_module)
    initial = Parameters(np.zeros(SIZE, np.float32), 0)
    sinks = share_hogwild(topology, initial, SIZE, OPTIMIZER, 2, shared_statistics)
    for worker, (sink, port) in enumerate(sinks):
        role = {"sink": sink, "port": port, "worker": worker, "num_workers": 2}
        topology.add("worker", TurnTaker, **role)
    return topology


@pytest.mark.parametrize("name", ["serial", "process"])
def test_weights_and_statistics_live_at_one_address_for_all_workers(name):
    """Two workers in turn leave exactly what one optimizer does that sees all gradients."""
    forkserver.warm_up()
    backend = make_backend(name, turn_takers(), 1)
    try:
        backend.start()
        deadline = time.monotonic() + 60
        while backend.parameters("weights").version < ROUNDS:
            assert time.monotonic() < deadline
            backend.advance(0.02)
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
    arrays = [np.zeros(SIZE, np.float32), np.zeros((num_workers + 1) * 8, np.int64)]
    if shared_statistics:
        arrays.append(np.zeros(state_size(OPTIMIZER, SIZE), np.float32))
    made = []
    for worker in range(num_workers):
        flat = FlatParameters(make_module())
        config = HogwildConfig(OPTIMIZER, worker, shared_statistics)
        made.append((flat, config(make_context(), flat, arrays)))
    return arrays, made


def test_statistics_of_its_own_see_only_the_workers_own_gradients():
    _, [(_, first), (_, second)] = workers_in_this_process(2, shared_statistics=False)
    first.apply(gradient_of(0, 0), 0)
    second.apply(gradient_of(1, 1), 0)
    for sink, gradient in ((first, gradient_of(0, 0)), (second, gradient_of(1, 1))):
        expected = 0.1 * gradient.square()
        np.testing.assert_allclose(sink.state()["optimizer"][:SIZE], expected, rtol=1e-6)


def test_a_version_counts_all_workers_and_lag_is_what_the_others_did_meanwhile():
    arrays, [(flat, first), (_, second)] = workers_in_this_process(2, shared_statistics=True)
    version = first.apply(gradient_of(0, 0), 0)
    assert version == 1
    np.testing.assert_array_equal(flat.numpy(), arrays[0])
    copied = flat.numpy().copy()
    for _ in range(3):
        second.apply(gradient_of(1, 1), 0)
    np.testing.assert_array_equal(flat.numpy(), copied)
    assert first.newest_version(version) - version == 3
    assert first.apply(gradient_of(0, 0), version) == 5


def test_a_gradient_that_is_not_finite_changes_nothing_but_counts():
    arrays, [(_, sink)] = workers_in_this_process(1, shared_statistics=True)
    assert sink.apply(torch.full((SIZE,), torch.nan), 0) == 1
    assert not arrays[0].any()
    assert not arrays[2].any()


def test_the_ring_brings_every_change_to_every_copy_exactly_once():
    """Quarters are exact in float32, so nothing may be lost, doubled or rounded."""
    draw = np.random.default_rng(3)
    clusters = 3
    token, holder = np.zeros(SIZE, np.float32), np.zeros(1, np.int64)
    copies = [np.zeros(SIZE, np.float32) for _ in range(clusters)]
    rings = [
        Ring(RingConfig(index, clusters, 1), copy, [token, holder, copy * 0, copy.copy()])
        for index, copy in enumerate(copies)
    ]
    total = np.zeros(SIZE, np.float32)
    for updates in range(1, 60):
        for copy, ring in zip(copies, rings, strict=True):
            if updates < 40:
                delta = (draw.integers(-8, 8, SIZE) / 4).astype(np.float32)
                copy += delta
                total += delta
            if draw.random() < 0.5 or updates >= 40:
                ring.turn(updates)
    for copy in copies:
        np.testing.assert_array_equal(copy, total)


def test_the_ring_turns_only_with_the_token_and_after_its_period():
    token, holder = np.zeros(1, np.float32), np.zeros(1, np.int64)
    copies = [np.zeros(1, np.float32) for _ in range(2)]
    rings = [
        Ring(RingConfig(index, 2, 4), copy, [token, holder, copy * 0, copy.copy()])
        for index, copy in enumerate(copies)
    ]
    copies[0] += 1
    rings[1].turn(9)
    rings[0].turn(3)
    assert holder[0] == 0
    assert token[0] == 0
    rings[0].turn(4)
    assert holder[0] == 1
    rings[1].turn(13)
    assert copies[1][0] == 1
