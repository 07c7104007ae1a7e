# SPDX-License-Identifier: Apache-2.0
"""Acting with soft actor-critic: bounds, the policy's spread, memory of the noise, values kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wiring import context

from veldt.networks import NetworkOptions, make_network
from veldt.roles.policies.selection import SquashedDraws
from veldt.types import ActionSpec, EnvironmentSpec, ObservationLeaf

SPEC = EnvironmentSpec(
    "test",
    (ObservationLeaf("observation", (3,), "float32", "vector"),),
    ActionSpec("box", low=(-2.0, -1.0), high=(2.0, 3.0), shape=(2,)),
)


@pytest.fixture
def network():
    return make_network(NetworkOptions(hidden_sizes=(16,)), SPEC, "sac", 0)


def replies(network, rows, count, **options):
    select = SquashedDraws(**options)
    select.open(network, context())
    observations = {"observation": torch.randn(rows, 3, generator=torch.manual_seed(0))}
    with torch.inference_mode():
        outputs, _ = network.step(observations, (), torch.zeros(rows, dtype=torch.bool))
        return observations, outputs, [select(outputs, observations) for _ in range(count)]


def test_draws_follow_the_policy_and_reach_the_environment_scaled(network):
    _, outputs, (reply,) = replies(network, 20_000, 1)
    u = np.arctanh(np.clip(reply.action, -0.999999, 0.999999))
    mean, std = network.normal.moments(outputs.params)
    z = (u - mean.numpy()) / std.numpy()
    np.testing.assert_allclose(z.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(z.std(0), 1.0, atol=0.03)
    np.testing.assert_allclose(reply.env_action[:, 0], 2.0 * reply.action[:, 0], atol=1e-6)
    np.testing.assert_allclose(reply.env_action[:, 1], 1 + 2 * reply.action[:, 1], atol=1e-6)


@pytest.mark.parametrize(("exponent", "least", "most"), [(0.0, -0.1, 0.1), (1.0, 0.4, 1.0)])
def test_pink_draws_are_like_the_ones_before(network, exponent, least, most):
    _, outputs, found = replies(network, 64, 200, exponent=exponent)
    pushes = np.stack([reply.action - outputs.action.numpy() for reply in found])
    pushes /= pushes.std()
    assert least < (pushes[1:] * pushes[:-1]).mean() < most


def test_values_are_kept_where_priorities_need_them(network):
    observations, outputs, (reply,) = replies(network, 16, 1)
    with torch.inference_mode():
        taken = network.critic(observations, torch.from_numpy(reply.action)).numpy()
        best = network.critic(observations, outputs.action).numpy()
    np.testing.assert_allclose(reply.outputs["value_taken"], taken, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reply.outputs["value_best"], best, rtol=1e-4, atol=1e-6)
    _, _, (reply,) = replies(network, 16, 1, keep_values=False)
    assert not reply.outputs["value_taken"].any()
