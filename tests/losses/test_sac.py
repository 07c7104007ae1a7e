# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic: targets, the actor's and the temperature's loss against loops over rows."""

import numpy as np
import pytest
import torch

from veldt.losses import sac

ROWS = 6
RANDOM = np.random.default_rng(0)
STATES, PHI = RANDOM.normal(size=(ROWS, 3)), RANDOM.normal(size=(3, 2))
PSI = RANDOM.normal(size=(2, 2))
TEMPERATURE = torch.tensor(0.3, dtype=torch.float64)
VALID = np.array([True, True, False, True, True, False])


def critics(action, psi):
    """Two critics that disagree about which action is good."""
    return torch.stack([action.square() @ psi[0], action @ psi[1]])


def test_targets_are_the_lower_critic_and_the_entropy_to_come():
    reward, log_prob = RANDOM.normal(size=(2, ROWS))
    next_qs = RANDOM.normal(size=(2, ROWS))
    discount = np.array([0.0, 0.9, 0.81, 0.729, 0.9, 0.0])
    parts = (torch.from_numpy(part) for part in (reward, discount, next_qs, log_prob))
    found = sac.soft_targets(*parts, TEMPERATURE)
    expected = [
        reward[i] + discount[i] * (min(next_qs[0, i], next_qs[1, i]) - 0.3 * log_prob[i])
        for i in range(ROWS)
    ]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("valid", [None, VALID])
def test_actor_loss_and_its_gradient_equal_the_loop(valid):
    phi, psi = torch.tensor(PHI, requires_grad=True), torch.tensor(PSI, requires_grad=True)
    action = torch.tanh(torch.from_numpy(STATES) @ phi)
    log_prob = (torch.from_numpy(STATES) @ phi).sum(1)  # any function of the actor's weights
    mask = None if valid is None else torch.from_numpy(valid)
    loss = sac.actor_loss(action, critics(action, psi), log_prob, TEMPERATURE, mask)
    loss.backward()
    rows = range(ROWS) if valid is None else np.flatnonzero(valid)
    total, gradient = 0.0, np.zeros((3, 2))
    for i in rows:
        u = STATES[i] @ PHI
        a = np.tanh(u)
        both = (a**2 @ PSI[0], a @ PSI[1])
        slope = 2 * a * PSI[0] if both[0] < both[1] else PSI[1]
        total += 0.3 * u.sum() - min(both)
        gradient += np.outer(STATES[i], 0.3 - slope * (1 - a**2))
    assert float(loss.detach()) == pytest.approx(total / len(rows))
    np.testing.assert_allclose(phi.grad, gradient / len(rows), atol=1e-12)
    assert psi.grad is None


def test_the_temperature_rises_while_the_entropy_is_below_its_target():
    for entropy, direction in ((-3.0, 1.0), (-1.0, -1.0)):
        log_temperature = torch.tensor(0.5, requires_grad=True)
        log_prob = torch.full((4,), -entropy, requires_grad=True)
        loss = sac.temperature_loss(log_temperature, log_prob, target_entropy=-2.0)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(-0.5 * (-entropy - 2.0))
        assert np.sign(-float(log_temperature.grad)) == direction
        assert log_prob.grad is None
