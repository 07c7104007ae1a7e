# SPDX-License-Identifier: Apache-2.0
"""The actor-critic loss; its gradient is checked against A3C's Algorithm S3 worked out by hand."""

import numpy as np
import pytest
import torch

from veldt.losses.actor_critic import policy_gradient_loss


def random_terms(seed=0):
    random = np.random.default_rng(seed)
    terms = [torch.from_numpy(random.normal(size=(4, 3))) for _ in range(5)]
    return terms, torch.from_numpy(random.random((4, 3)) < 0.6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_runs_over_valid_rows_only(reduction):
    terms, valid = random_terms()
    found = policy_gradient_loss(*terms, valid, 0.5, 0.1, reduction)
    log_probs, advantages, values, targets, entropies = terms
    policy = value = entropy = 0.0
    for row in map(tuple, valid.nonzero().tolist()):
        policy -= log_probs[row] * advantages[row]
        value += (targets[row] - values[row]) ** 2 / 2
        entropy += entropies[row]
    count = 1 if reduction == "sum" else int(valid.sum())
    total = (policy + 0.5 * value - 0.1 * entropy) / count
    expected = [total, policy / count, value / count, entropy / count]
    np.testing.assert_allclose([float(part) for part in found], expected, atol=1e-12)


def test_illegal_action_in_an_invalid_row_gives_no_nan():
    terms, valid = random_terms()
    terms[0][~valid] = -torch.inf
    terms[1][~valid] = 0.0
    log_probs, values = terms[0].requires_grad_(), terms[2].requires_grad_()
    loss = policy_gradient_loss(*terms, valid, 0.5, 0.1)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert (log_probs.grad[~valid] == 0).all()
    assert (values.grad[~valid] == 0).all()
