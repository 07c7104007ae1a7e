# SPDX-License-Identifier: Apache-2.0
"""Learners that step together over torch.distributed, in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import test_synchronous_group as group

from veldt.backends import make_backend
from veldt.backends.base import captured
from veldt.backends.saving import role_state
from veldt.errors import ConfigurationError
from veldt.objectives.actor_critic import ActorCritic, ActorCriticOptions
from veldt.options import RunOptions
from veldt.roles.gradients.all_reduce import AllReduce
from veldt.roles.gradients.meeting import backend_for
from veldt.roles.gradients.synchronous_group import GroupLeader, synchronous_group
from veldt.roles.learner import Learner
from veldt.run.plan import make_plan
from veldt.topology import Topology
from veldt.types import trajectory_layout

PATIENCE_SECONDS = 60.0


def plan(backend="process", num_learners=2, **own):
    options = RunOptions(
        env="CartPole-v1", backend=backend, num_actors=2, envs_per_actor=4, hidden_sizes=(16,)
    )
    return make_plan("impala", options, {"num_learners": num_learners, **own})


def advance_until(backend, condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        backend.advance(0.02)


def advance_by_updates(backend, number):
    last = backend.parameters("weights").version + number
    advance_until(
        backend, lambda: backend.parameters("weights").version >= last, f"{number} updates"
    )


def has_restarted(backend, times):
    return backend.restarts == times


def last_weights(reduction, statistics):
    """After UPDATES over gloo, from the trajectories that the test beside this one feeds."""
    built = group.network(statistics)
    layout = trajectory_layout(group.SPEC, group.STEPS, group.ENVS, built.make().output_fields())
    topology = Topology(built)
    weights = topology.board("weights", built)
    loss = ActorCriticOptions(correction="none", reduction=reduction)
    sinks = synchronous_group(topology, weights, group.OPTIMIZER, 2, reduction, all_reduce=True)
    for index, gradients in enumerate(sinks):
        assert isinstance(gradients, AllReduce)
        queue = topology.queue(f"trajectories-{index}", layout, 2)
        topology.add("feeder", group.Feeder(queue.sink, [index]))
        topology.add(
            "learner",
            Learner(
                built,
                queue.source(),
                ActorCritic(loss),
                gradients,
                weights.source(),
                None if index else weights.sink,
            ),
        )
    backend = make_backend("process", topology, 1)
    backend.start()
    try:
        advance_until(
            backend,
            lambda: backend.parameters("weights").version == group.UPDATES,
            "the last update",
        )
        return backend.parameters("weights").vector.copy()
    finally:
        backend.stop()


@pytest.mark.parametrize(("reduction", "statistics"), [("mean", True), ("sum", False)])
def test_two_learners_equal_one_with_the_joined_batch(reduction, statistics):
    [alone] = group.histories(1, reduction, statistics)
    over_gloo = last_weights(reduction, statistics)
    trained = group.network(statistics).num_trained()
    np.testing.assert_allclose(over_gloo[:trained], alone[-1][:trained], rtol=0, atol=1e-5)
    np.testing.assert_allclose(over_gloo[trained:], alone[-1][trained:], rtol=1e-5)
    assert np.abs(over_gloo - group.network(statistics).initial_vector()).max() > 0.05


@pytest.mark.parametrize("killed", ["learner-0", "learner-1"])
def test_the_group_forms_again_around_a_learner_that_was_killed(killed, tmp_path):
    """The one that keeps the store, or another; all have the same weights and moments then."""
    made = plan(exchange="all_reduce")
    backend = make_backend("process", made.topology, 1)
    backend.run_dir = tmp_path
    backend.start()
    try:
        for kills in range(1, 3):
            advance_by_updates(backend, 20)
            os.kill(backend.process_ids()[killed], signal.SIGKILL)
            advance_until(backend, partial(has_restarted, backend, kills), "a successor")
        advance_by_updates(backend, 20)
        assert_the_learners_are_equal(backend)
    finally:
        backend.stop()


@pytest.mark.slow
def test_learners_on_ray_find_each_other():
    backend = make_backend("ray", plan("ray", exchange="all_reduce").topology, 1)
    backend.start()
    try:
        advance_by_updates(backend, 20)
        assert_the_learners_are_equal(backend)
    finally:
        backend.stop()


def assert_the_learners_are_equal(backend):
    """In weights and moments."""
    first, second = saved_at_one_version(backend)
    np.testing.assert_array_equal(first["vector"], second["vector"])
    optimizers = first["gradients.optimizer"], second["gradients.optimizer"]
    np.testing.assert_array_equal(*optimizers)
    assert np.abs(optimizers[0]).max() > 0


def saved_at_one_version(backend):
    """The states of both learners, which are asked one after the other, so that one may have gone
    on."""
    for _ in range(50):
        parts = captured(backend, PATIENCE_SECONDS)
        states = [role_state(parts[learner]) for learner in ("learner-0", "learner-1")]
        if states[0]["version"] == states[1]["version"]:
            return states
    raise AssertionError("the learners were never saved at the same version")


def test_which_way_gradients_take():
    def sink(**options):
        return plan(**options).topology.of("learner")[0].role.gradients

    assert isinstance(sink(), GroupLeader)
    assert isinstance(sink(exchange="channels"), GroupLeader)
    assert isinstance(sink(exchange="all_reduce"), AllReduce)
    assert not isinstance(sink(exchange="all_reduce", num_learners=1), AllReduce)
    with pytest.raises(ConfigurationError, match="use --exchange channels"):
        sink(exchange="all_reduce", backend="serial")


@pytest.mark.parametrize(
    ("devices", "in_one_process", "found"),
    [
        (("cuda:0", "cuda:1"), False, True),
        (("cuda:0", "cuda:1"), True, False),
        (("cuda:0", "cuda:0"), False, False),
        (("cuda:0", "cpu"), False, False),
        ((), False, False),
    ],
)
def test_by_itself_only_a_gpu_for_each_learner_is_a_reason_for_it(devices, in_one_process, found):
    problem = replace(plan().problem, learner_devices=devices, in_one_process=in_one_process)
    assert problem.reduces_collectively("auto", 2) is found


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["here cpu", "here cpu"], "gloo"),
        (["here cuda:0", "here cpu"], "gloo"),
        (["here cuda:0", "here cuda:0"], "gloo"),
    ],
)
def test_gloo_serves_where_learners_do_not_have_a_gpu_each(devices, backend):
    assert backend_for(devices) == backend


def test_nccl_serves_where_they_do(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert backend_for(["here cuda:0", "here cuda:1"]) == "nccl"
    assert backend_for(["here cuda:0", "there cuda:0"]) == "nccl"
