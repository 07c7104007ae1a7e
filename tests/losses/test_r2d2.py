# SPDX-License-Identifier: Apache-2.0
"""R2D2's rescaling and sequence targets."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.losses import r2d2

ACTIONS = 3


@given(st.floats(-1e6, 1e6), st.sampled_from([1e-3, 1e-2]))
def test_h_and_its_inverse_are_the_printed_ones(x, epsilon):
    value = torch.tensor(x, dtype=torch.float64)
    assert float(r2d2.rescale(value, epsilon)) == pytest.approx(slow.h(x, epsilon), abs=1e-9)
    inverse = float(r2d2.inverse_rescale(value, epsilon))
    assert inverse == pytest.approx(slow.h_inverse(x, epsilon), rel=1e-9, abs=1e-9)


@given(slow.rows, st.integers(1, 6))
def test_sequence_targets_equal_the_loop(data, n):
    random = np.random.default_rng(0)
    steps, envs = data.shape
    online, target = random.normal(size=(2, steps, envs, ACTIONS)) * 5
    mask = random.random((steps, envs, ACTIONS)) < 0.5
    mask[..., 0] = True
    for t, b in np.ndindex(steps, envs):
        legal = np.flatnonzero(mask[t, b])
        best = max(legal, key=lambda a, t=t, b=b: online[t, b, a])
        data.next_values[t, b] = slow.h_inverse(target[t, b, best])
    expected = slow.h(slow.per_row(data, slow.n_step_return, 0.9, n))
    rewards, *flags = data.tensors("rewards", *slow.FLAGS)
    q_values = torch.from_numpy(online), torch.from_numpy(target)
    found = r2d2.sequence_targets(rewards, *q_values, *flags, 0.9, n, torch.from_numpy(mask))
    np.testing.assert_allclose(found, expected, atol=1e-8)
