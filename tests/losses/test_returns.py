# SPDX-License-Identifier: Apache-2.0
"""Returns against sums written out row by row."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.losses import returns

BOOTSTRAPPED = ("rewards", "next_values", *slow.FLAGS)
gammas = st.sampled_from([0.0, 0.9, 1.0])


@given(slow.rows, gammas, st.integers(1, 12))
def test_n_step_returns_equal_the_sum(data, gamma, n):
    found = returns.n_step_returns(*data.tensors(*BOOTSTRAPPED), gamma, n)
    expected = slow.per_row(data, slow.n_step_return, gamma, n)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(slow.rows, gammas)
def test_forward_view_runs_to_the_end_of_episode_or_trajectory(data, gamma):
    found = returns.n_step_returns(*data.tensors(*BOOTSTRAPPED), gamma)
    np.testing.assert_allclose(found, slow.per_row(data, slow.n_step_return, gamma), atol=1e-12)


def test_truncation_bootstraps_and_termination_does_not():
    def column(*entries):
        return torch.tensor(entries)[:, None]

    rewards, next_values = column(1.0, 2.0, 4.0, 8.0), column(10.0, 20.0, 30.0, 40.0)
    nothing, second = column(False, False, False, False), column(False, True, False, False)
    terminated = returns.n_step_returns(rewards, next_values, second, nothing, nothing, 0.5)
    truncated = returns.n_step_returns(rewards, next_values, nothing, second, nothing, 0.5)
    assert terminated[:, 0].tolist() == [1 + 1, 2, 4 + 4 + 10, 8 + 20]
    assert truncated[:, 0].tolist() == [1 + 1 + 5, 2 + 10, 4 + 4 + 10, 8 + 20]


def test_discounts_vanish_only_at_terminations():
    assert returns.discounts(torch.tensor([False, True]), 0.5).tolist() == [0.5, 0.0]


def test_continues_needs_a_successor_that_counts():
    flags = torch.zeros(3, 5, 1, dtype=torch.bool)
    flags[2, 3] = True
    assert returns.continues(*flags)[:, 0].tolist() == [True, True, False, False, False]


def test_n_must_be_positive():
    data = slow.random_rows(0, 3, 1, 0.0)
    with pytest.raises(ValueError, match="n >= 1"):
        returns.n_step_returns(*data.tensors(*BOOTSTRAPPED), 0.9, 0)
