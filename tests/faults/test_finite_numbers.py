# SPDX-License-Identifier: Apache-2.0
"""Gradients that are not finite: skipped, counted, and too many stop the run."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from veldt.backends.base import NodeFailure
from veldt.backends.serial import SerialBackend
from veldt.options import RunOptions
from veldt.roles.learner import MOST_DROPS_IN_A_ROW, Learner
from veldt.run.plan import make_plan

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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_bad_gradient_is_skipped_and_nothing_else(architecture, tmp_path):
    with serial_run(architecture, tmp_path) as backend:
        poison = Poison(learner_of(backend))
        learn_until(backend, lambda: total(backend, "updates") > 3)
        for _ in range(7):  # more than end a run in a row
            poison.count, before = 3, poison.injected
            learn_until(backend, lambda before=before: poison.injected == before + 3)
        skipped = total(backend, "dropped.not_finite")
        assert skipped == poison.injected == 21 > MOST_DROPS_IN_A_ROW
        assert np.isfinite(published(backend)).all()


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
