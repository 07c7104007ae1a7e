# SPDX-License-Identifier: Apache-2.0
"""Returns against sums written out row by row."""

import numpy as np
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.losses import returns

BOOTSTRAPPED = ("rewards", "next_values", *slow.FLAGS)
gammas = st.sampled_from([0.0, 0.9, 1.0])


@given(slow.rows, gammas, st.none() | st.integers(1, 12))
def test_n_step_returns_equal_the_sum(data, gamma, n):
    found = returns.n_step_returns(*data.tensors(*BOOTSTRAPPED), gamma, n)
    expected = slow.per_row(data, slow.n_step_return, gamma, n)
    np.testing.assert_allclose(found, expected, atol=1e-12)
