# SPDX-License-Identifier: Apache-2.0
"""TD3: smoothed actions, clipped double targets and the twin loss against loops over rows."""

import numpy as np
import pytest
import torch

from veldt.losses import td3

ROWS = 6
RANDOM = np.random.default_rng(0)


def test_smoothing_is_bounded_twice():
    action, noise = RANDOM.uniform(-1, 1, (ROWS, 2)), 3 * RANDOM.normal(size=(ROWS, 2))
    found = td3.smoothed_action(torch.from_numpy(action), torch.from_numpy(noise), 0.2, 0.5)
    for place in np.ndindex(ROWS, 2):
        push = min(max(0.2 * noise[place], -0.5), 0.5)
        expected = min(max(action[place] + push, -1.0), 1.0)
        assert float(found[place]) == pytest.approx(expected)
    assert (np.abs(0.2 * noise) > 0.5).any()
    assert (found.abs() == 1.0).any()


def test_targets_take_the_lower_critic():
    reward, next_qs = RANDOM.normal(size=ROWS), RANDOM.normal(size=(2, ROWS))
    discount = np.array([0.0, 0.9, 0.81, 0.729, 0.9, 0.0])
    parts = (torch.from_numpy(part) for part in (reward, discount, next_qs))
    found = td3.clipped_double_targets(*parts)
    expected = [reward[i] + discount[i] * min(next_qs[:, i]) for i in range(ROWS)]
    np.testing.assert_allclose(found, expected)


def test_twin_loss_its_gradient_and_its_errors_equal_the_loop():
    qs, targets = RANDOM.normal(size=(2, ROWS)), RANDOM.normal(size=ROWS)
    weights = RANDOM.uniform(size=ROWS)
    valid = np.array([True, True, False, True, True, False])
    learned = torch.tensor(qs, requires_grad=True)
    found = td3.twin_critic_loss(
        learned, torch.from_numpy(targets), torch.from_numpy(weights), torch.from_numpy(valid)
    )
    found.loss.backward()
    total, slopes, errors = 0.0, np.zeros((2, ROWS)), np.zeros(ROWS)
    for i in np.flatnonzero(valid):
        for critic in range(2):
            error = targets[i] - qs[critic, i]
            total += weights[i] * error**2 / 2 / valid.sum()
            slopes[critic, i] = -weights[i] * error / valid.sum()
            errors[i] += abs(error) / 2
    assert float(found.loss.detach()) == pytest.approx(total)
    np.testing.assert_allclose(learned.grad, slopes)
    np.testing.assert_allclose(found.td, errors)
