# SPDX-License-Identifier: Apache-2.0
"""The learner by itself: learning rate, statistics, versions."""

import numpy as np
import pytest
import torch
from network_specs import make_spec, vector
from wiring import context

from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.networks import NetworkFactory, NetworkOptions
from veldt.optimizers import OptimizerOptions, Schedule
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.learner import MOST_DROPS_IN_A_ROW, FiniteGuard, Learner, NotFiniteError
from veldt.types import DISCOUNTED_RETURN, Batch, Field, trajectory_layout

STEPS, ENVS = 3, 2
ROWS = STEPS * ENVS
SPEC = make_spec(vector(4))


class Batches:
    """A source of given batches."""

    def __init__(self, batches):
        self.batches = list(batches)

    def take_batch(self):
        return Batch(self.batches.pop(0)) if self.batches else None

    def release(self, batch):
        pass


class SpyingOptimizer(LocalOptimizer):
    def apply(self, gradient):
        self.__dict__.setdefault("scales", []).append(gradient.learning_rate_scale)
        return super().apply(gradient)


def batch(network, number=0):
    outputs = {**network.make().output_fields(), DISCOUNTED_RETURN: Field((), "float32")}
    layout, draw = trajectory_layout(SPEC, STEPS, ENVS, outputs), np.random.default_rng(number)
    arrays = {name: np.zeros(field.shape, field.dtype) for name, field in layout.items()}
    for array in arrays.values():
        if array.dtype == np.float32:
            array[:] = draw.normal(size=array.shape)
    return arrays


def learner(batches=None, num_batches=1, decay=None, told=None, **config):
    network = NetworkFactory(NetworkOptions(hidden_sizes=(8,), **config), SPEC, "policy_value", 2)
    if batches is None:
        batches = [batch(network, number) for number in range(num_batches)]
    loss = ActorCritic(ActorCriticOptions(correction="none"))
    gradients = SpyingOptimizer(OptimizerOptions("rmsprop", 0.01))
    role = Learner(network, Batches(batches), loss, gradients, decay=decay)
    role.open(told or context("learner-0"))
    return role


def learn_all(role):
    while role.step():
        pass
    return role


def test_the_learning_rate_decays_to_zero():
    role = learn_all(learner(num_batches=12, decay=Schedule(10 * ROWS)))
    expected = [max(0.0, 1.0 - trained / 10) for trained in range(1, 13)]
    assert role.gradients.scales == pytest.approx(expected)
    constant = learn_all(learner(num_batches=3))
    assert constant.gradients.scales == [1.0] * 3


def test_the_seed_of_a_loss_depends_on_the_run_and_the_learner():
    learners = [("learner-0", 1), ("learner-0", 2), ("learner-1", 1), ("learner-0", 1)]
    seeds = [learner(told=context(name, seed=seed)).objective.seed for name, seed in learners]
    assert seeds[0] == seeds[3]
    assert len(set(seeds)) == 3


def test_statistics_ignore_reset_rows_and_the_bootstrap_row():
    network = NetworkFactory(NetworkOptions(hidden_sizes=(8,)), SPEC, "policy_value", 2)
    arrays = batch(network)
    arrays["ignored"][1, 0] = True
    found = []
    for rubbish in (0.0, 1e6):
        arrays["observation"][1, 0] = arrays["observation"][-1] = rubbish
        arrays[DISCOUNTED_RETURN][1, 0] = arrays[DISCOUNTED_RETURN][-1] = rubbish
        role = learner([arrays], normalize_observations=True, normalize_returns=True)
        learn_all(role)
        found.append(role._flat.vector[role._flat.num_trained :].clone())
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    valid = ~arrays["ignored"][:-1]
    moments = role._network.return_moments
    expected = arrays[DISCOUNTED_RETURN][:-1][valid]
    assert float(moments.mean) == pytest.approx(expected.mean(), rel=1e-3)


def test_a_restored_learner_never_goes_back_to_an_older_version():
    role = learn_all(learner(num_batches=2))
    older = {name: np.copy(array) for name, array in role.state().items()}
    role.source.batches = [batch(role.network, 9)]
    learn_all(role)
    newest = role._flat.numpy().copy()
    role.load_state(older)
    assert role._version == 3
    np.testing.assert_array_equal(role._flat.numpy(), newest)
    other = learner(num_batches=1)
    other.load_state(older)
    assert other._version == 2
    np.testing.assert_array_equal(other._flat.numpy(), older["vector"])


def test_too_many_gradients_in_a_row_that_are_not_finite_end_the_run():
    told = context()
    guard, drops = FiniteGuard(told), told.telemetry.counter("dropped.not_finite")
    almost = [1] * (MOST_DROPS_IN_A_ROW - 1)
    for dropped in (*almost, 0, *almost):
        drops.add(dropped)
        guard.check()
    drops.add(1)
    with pytest.raises(NotFiniteError):
        guard.check()
