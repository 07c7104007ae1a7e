# SPDX-License-Identifier: Apache-2.0
"""PQN against its formula, written slowly."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st
from test_ppo_objective import ACTIONS, ENVS, SPEC, STEPS, batch_of, tensors

from veldt.losses.pqn import PQN, PQNOptions, q_lambda_targets
from veldt.losses.returns import Rows
from veldt.networks import NetworkOptions, make_network


def q_lambda(data, t, b, gamma, lambda_):
    """(1 - lambda) sum_n lambda^(n-1) (n-step return), and the rest of lambda on the longest."""
    longest = len(slow.window(data, t, b))
    returns = [slow.n_step_return(data, t, b, gamma, n + 1) for n in range(longest)]
    shares = [(1 - lambda_) * lambda_**n for n in range(longest - 1)]
    return float(np.dot([*shares, lambda_ ** (longest - 1)], returns)) if longest else 0.0


@given(slow.rows, st.sampled_from([0.0, 0.65, 1.0]))
def test_targets_equal_the_mixture_of_returns(data, lambda_):
    # The value after a row with a window that goes on is that of the next row.
    rows = Rows(*data.tensors("rewards", "values", "next_values", *slow.FLAGS))
    found = q_lambda_targets(rows, 0.9, lambda_)
    np.testing.assert_allclose(found, slow.per_row(data, q_lambda, 0.9, lambda_), atol=1e-10)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_one_pass_is_half_the_squared_error_of_the_counted_rows(layer_norm):
    network = make_network(
        NetworkOptions(hidden_sizes=(8,), layer_norm=layer_norm), SPEC, "q", seed=1
    )
    objective, batch = PQN(PQNOptions(epochs=2, minibatches=3)), tensors(batch_of())
    objective.open(network)
    with torch.no_grad():
        q = network.unroll(batch, (), batch["first"])[0].q_values.double().numpy()
    flags = [batch[name][:-1].numpy() for name in slow.FLAGS]
    following = q[1:].max(-1)
    data = slow.Rows(batch["reward"][:-1].numpy(), following, following, following, *flags)
    taken = np.take_along_axis(q[:-1], batch["action"][:-1, :, None].numpy(), -1)[..., 0]
    errors = (slow.per_row(data, q_lambda, 0.99, 0.65) - taken)[~data.ignored]
    losses, counts = [], []
    for part in objective.passes(batch):
        counts.append(part["valid"].flatten()[part["index"]].sum().item())
        losses.append(objective(part).total.item())
    total = np.dot(losses[:3], counts[:3])  # the weights have not changed
    assert total == pytest.approx(0.5 * np.square(errors).sum(), rel=1e-4)
    assert sum(counts[:3]) == sum(counts[3:]) == errors.size
    assert q.shape == (STEPS + 1, ENVS, ACTIONS)
