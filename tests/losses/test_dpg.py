# SPDX-License-Identifier: Apache-2.0
"""Deterministic policy gradients: targets, the critic's loss, the clipped chain rule, copies."""

import numpy as np
import pytest
import torch

from veldt.losses import dpg

STATES = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
PHI = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 2)))
PSI = torch.tensor([4.0, 0.3], dtype=torch.float64)


def policy(phi):
    return torch.tanh(STATES @ phi)


def critic(action, psi):
    """Steep in the first action, gentle in the second, so that only one is clipped."""
    return (action.square() + action) @ psi


def test_critic_targets_and_weighted_loss():
    random = np.random.default_rng(2)
    reward, q, next_q, weights = random.normal(size=(4, 6))
    discount = np.array([0.0, 0.9, 0.81, 0.729, 0.9, 0.0])
    parts = (torch.from_numpy(part) for part in (reward, discount, next_q))
    targets = dpg.critic_targets(*parts)
    expected = [reward[i] + discount[i] * next_q[i] for i in range(6)]
    np.testing.assert_allclose(targets, expected)
    learned = torch.from_numpy(q).requires_grad_()
    found = dpg.critic_loss(learned, targets, torch.from_numpy(weights))
    td = [expected[i] - q[i] for i in range(6)]
    loss = sum(weights[i] * td[i] ** 2 / 2 for i in range(6)) / 6
    assert float(found.loss.detach()) == pytest.approx(loss)
    np.testing.assert_allclose(found.td, td)
    found.loss.backward()
    slope = [-weights[i] * td[i] / 6 for i in range(6)]
    np.testing.assert_allclose(learned.grad, slope)


@pytest.mark.parametrize("bound", [None, 1.0])
def test_actor_gradient_is_the_chain_rule_with_clipped_middle(bound):
    phi, psi = PHI.clone().requires_grad_(), PSI.clone().requires_grad_()
    action = policy(phi)
    loss = dpg.actor_loss(action, critic(action, psi), bound)
    loss.backward()
    expected, clipped = np.zeros((3, 2)), 0
    for i in range(6):
        a = np.tanh(STATES[i].numpy() @ PHI.numpy())
        slope = (2 * a + 1) * PSI.numpy()
        if bound is not None:
            clipped += int((np.abs(slope) > bound).sum())
            slope = np.clip(slope, -bound, bound)
        expected -= np.outer(STATES[i], slope * (1 - a**2)) / 6
    np.testing.assert_allclose(phi.grad, expected, atol=1e-12)
    assert psi.grad is None
    if bound is not None:
        assert 0 < clipped < 12
    reading = -critic(policy(PHI), PSI).mean()
    assert float(loss.detach()) == pytest.approx(float(reading))
