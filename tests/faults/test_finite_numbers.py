# SPDX-License-Identifier: Apache-2.0
"""Gradients that are not finite: skipped whole, counted, recorded, and too many stop the run."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from veldt.backends.base import NodeFailure
from veldt.backends.serial import SerialBackend
from veldt.options import RunOptions
from veldt.roles.learner import MOST_DROPS_IN_A_ROW, Learner
from veldt.run.checkpoints import RunCheckpoints
from veldt.run.plan import make_plan
from veldt.telemetry.aggregate import RunTelemetry

ARCHITECTURES = ("impala", "a3c", "ga3c", "dqn", "gorila")


@contextmanager
def serial_run(architecture, tmp_path, **own):
    options = RunOptions("CartPole-v1", backend="serial", envs_per_actor=4, num_actors=1)
    if architecture in ("dqn", "gorila"):
        own = {"min_replay_transitions": 100, "batch_size": 16, **own}
    backend = SerialBackend(make_plan(architecture, options, own).topology, seed=1)
    backend.run_dir = tmp_path
    backend.start()
    try:
        yield backend
    finally:
        backend.stop()


def learner_of(backend):
    return next(node.role for node in backend._nodes if isinstance(node.role, Learner))


def total(backend, name):
    return sum(snapshot.counters.get(name, 0.0) for snapshot in backend.snapshots())


def published(backend):
    """What whoever acts would read now."""
    boards = backend._topology.weights
    return np.concatenate([backend.parameters(board).vector for board in boards])


def learn_until(backend, condition):
    for _ in range(400):
        if condition():
            return
        backend.advance(0.0)
    raise AssertionError("waited in vain")


class Poison:
    """Makes the next `count` losses NaN, as an unlucky batch would."""

    def __init__(self, learner):
        self.count, self.injected, self._objective = 0, 0, learner.objective
        learner.objective = self

    def __call__(self, batch):
        loss = self._objective(batch)
        if self.count:
            self.count -= 1
            self.injected += 1
            return loss._replace(total=loss.total * torch.nan)
        return loss

    def __getattr__(self, name):
        return getattr(self._objective, name)


def moments(learner):
    return {name: array.copy() for name, array in learner.gradients.state().items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_bad_gradient_is_skipped_and_nothing_else(architecture, tmp_path):
    with serial_run(architecture, tmp_path) as backend:
        poison = Poison(learner_of(backend))
        learn_until(backend, lambda: total(backend, "updates") > 3)
        for _ in range(5):
            poison.count, before = 3, poison.injected
            learn_until(backend, lambda before=before: poison.injected == before + 3)
        skipped = total(backend, "dropped.not_finite")
        assert skipped == poison.injected == 15
        assert np.isfinite(published(backend)).all()


def test_a_skipped_step_leaves_weights_and_moments_untouched(tmp_path):
    with serial_run("impala", tmp_path, normalize_returns=False) as backend:
        learner = learner_of(backend)
        poison = Poison(learner)
        learn_until(backend, lambda: total(backend, "updates") > 3)
        kept, weights = moments(learner), learner._flat.vector.clone()
        injected = poison.injected
        poison.count = 1
        while poison.injected == injected:
            backend._round()
        assert torch.equal(weights, learner._flat.vector)
        assert all(np.array_equal(kept[name], array) for name, array in moments(learner).items())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_burst_stops_the_run_with_the_last_good_weights(architecture, tmp_path):
    with serial_run(architecture, tmp_path) as backend:
        learner = learner_of(backend)
        poison = Poison(learner)
        learn_until(backend, lambda: total(backend, "updates") > 3)
        poison.count = 10**6
        with pytest.raises(NodeFailure, match=r"er-0 failed: NotFiniteError: 20 gradients"):
            learn_until(backend, lambda: False)
        assert poison.injected == MOST_DROPS_IN_A_ROW
        assert np.isfinite(published(backend)).all()


def test_weights_that_broke_are_put_back_before_the_run_ends(tmp_path):
    with serial_run("impala", tmp_path) as backend:
        learn_until(backend, lambda: total(backend, "updates") > 3)
        learner_of(backend)._flat.vector[0] = torch.nan
        with pytest.raises(NodeFailure, match="not finite"):
            learn_until(backend, lambda: False)
        assert np.isfinite(published(backend)).all()


def test_bad_weights_are_never_saved(tmp_path):
    with serial_run("impala", tmp_path) as backend:
        telemetry, notes = RunTelemetry([]), []
        checkpoints = RunCheckpoints(
            tmp_path / "checkpoints",
            backend,
            telemetry,
            every_seconds=None,
            every_env_steps=None,
            note=notes.append,
        )
        weights = backend.parameters("weights")
        weights.vector[3] = np.inf
        assert checkpoints.save(weights) is None
        assert notes == ["no checkpoint was written: the weights are not finite"]
