# SPDX-License-Identifier: Apache-2.0
"""V-trace against equation 1 of the IMPALA paper, summed by brute force."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.losses.returns import Rows, n_step_returns
from veldt.losses.vtrace import Traces, vtrace

ORDER = ("log_rhos", "rewards", "values", "next_values", *slow.FLAGS)
gammas = st.sampled_from([0.0, 0.9, 1.0])
lambdas = st.sampled_from([0.0, 0.5, 1.0])
bars = st.sampled_from([(1.0, 1.0), (2.0, 0.5), (10.0, 10.0)])


def grouped(tensors):
    """In ORDER, as the functions take them."""
    return tensors[0], Rows(*tensors[1:])


@given(slow.rows, gammas, lambdas, bars)
def test_targets_and_advantages_equal_the_printed_sums(data, gamma, lambda_, bars):
    found = vtrace(*grouped(data.tensors(*ORDER)), Traces(gamma, lambda_, *bars))
    settings = Traces(gamma, lambda_, *bars)
    np.testing.assert_allclose(
        found.vs, slow.per_row(data, slow.vtrace_target, *settings), atol=1e-10
    )
    np.testing.assert_allclose(
        found.advantages, slow.per_row(data, slow.vtrace_advantage, *settings), atol=1e-10
    )


@given(slow.rows, gammas, st.none() | st.integers(1, 12))
def test_n_step_returns_equal_the_sum(data, gamma, n):
    found = n_step_returns(*data.tensors("rewards", "next_values", *slow.FLAGS), gamma, n)
    expected = slow.per_row(data, slow.n_step_return, gamma, n)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(slow.rows)
def test_garbage_in_ignored_rows_leaks_nowhere(data):
    clean = vtrace(*grouped(data.tensors(*ORDER)), Traces(0.9))
    data.rewards[data.ignored] = np.nan
    data.log_rhos[data.ignored] = np.nan
    data.next_values[data.ignored] = np.inf
    dirty = vtrace(*grouped(data.tensors(*ORDER)), Traces(0.9))
    np.testing.assert_array_equal(dirty.vs, clean.vs)
    np.testing.assert_array_equal(dirty.advantages, clean.advantages)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_both_autoreset_modes_give_the_same_targets(end):
    """NEXT_STEP has a reset row after the end; SAME_STEP has not, but a substituted next value."""
    same = slow.random_rows(3, 6, 2, 0.0)
    getattr(same, end)[2] = True
    same.next_values[2] = [5.0, -7.0]
    reset = slow.random_rows(4, 1, 2, 0.0)
    columns = {}
    for name in ORDER:
        rows, filler = getattr(same, name), getattr(reset, name)
        filler = same.next_values[2:3] if name == "values" else filler
        filler = np.ones((1, 2), bool) if name == "ignored" else filler
        columns[name] = np.concatenate([rows[:3], filler.astype(rows.dtype), rows[3:]])
    tensors = [torch.from_numpy(columns[name]) for name in ORDER]
    expected, found = (
        vtrace(*grouped(same.tensors(*ORDER)), Traces(0.9)),
        vtrace(*grouped(tensors), Traces(0.9)),
    )
    kept = [0, 1, 2, 4, 5, 6]
    np.testing.assert_allclose(found.vs[kept], expected.vs, atol=1e-12)
    np.testing.assert_allclose(found.advantages[kept], expected.advantages, atol=1e-12)


def test_rho_bar_below_c_bar_is_refused():
    data = slow.random_rows(0, 3, 1, 0.0)
    with pytest.raises(ValueError, match="rho_bar >= c_bar"):
        vtrace(*grouped(data.tensors(*ORDER)), Traces(0.9, rho_bar=0.5, c_bar=1.0))
