# SPDX-License-Identifier: Apache-2.0
"""Both ways to reduce the gradients of two learners end in the same weights, in real processes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from veldt.networks import FlatParameters, NetworkFactory, NetworkOptions
from veldt.optimizers import make_optimizer

UPDATES = 3


@pytest.fixture(scope="module")
def group():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("learner_group")
    sys.path.remove(folder)


def test_channels_and_gloo_equal_one_learner_with_the_mean_gradient(group):
    network = NetworkFactory(NetworkOptions(hidden_sizes=(16, 16)), group._SPEC, "policy_value")
    flat = FlatParameters(network.make())
    optimizer = make_optimizer(group._OPTIMIZER, flat.vector[: flat.num_trained])
    mean = sum(group.gradients_of(flat, learner).vector for learner in range(2)) / 2
    for _ in range(UPDATES):
        optimizer.step(mean.clone())
    assert not torch.equal(flat.vector, torch.from_numpy(network.initial_vector()))
    for all_reduce in (False, True):
        rows, weights = group.exchanged(network, UPDATES, all_reduce)
        assert len(rows) == 2
        np.testing.assert_allclose(weights, flat.numpy(), atol=1e-5)
