# SPDX-License-Identifier: Apache-2.0
"""The actor's initial priorities against one loop per window."""

import numpy as np
import pytest
import transcriptions as slow
from hypothesis import given
from hypothesis import strategies as st

from veldt.algorithms.priorities import n_step_priorities, n_step_windows

ACTIONS = 3
GAMMA = 0.9


def q_and_action(data, seed=0):
    random = np.random.default_rng(seed)
    steps, envs = data.shape
    q_values = random.normal(size=(steps + 1, envs, ACTIONS)).astype(np.float32)
    return q_values, random.integers(ACTIONS, size=(steps, envs))


def flags(data):
    return data.terminated, data.truncated, data.ignored


@given(slow.rows, st.integers(1, 6), st.booleans())
def test_priority_is_the_absolute_n_step_error(data, n, masked):
    q_values, action = q_and_action(data)
    mask = np.random.default_rng(1).random(q_values.shape) < 0.5
    mask[..., 2] = True
    for t, b in np.ndindex(*data.shape):
        legal = np.flatnonzero(mask[t + 1, b]) if masked else range(ACTIONS)
        data.next_values[t, b] = max(q_values[t + 1, b, a] for a in legal)
    priority, valid = n_step_priorities(
        q_values,
        action,
        data.rewards,
        *flags(data),
        GAMMA,
        n,
        action_mask=mask if masked else None,
    )
    for t, b in np.ndindex(*data.shape):
        assert valid[t, b] == (not data.ignored[t, b])
        error = slow.n_step_return(data, t, b, GAMMA, n) - q_values[t, b, action[t, b]]
        expected = abs(error) if valid[t, b] else 0.0
        assert priority[t, b] == pytest.approx(expected, abs=1e-5)
    assert priority.dtype == np.float32


@given(slow.rows, st.integers(1, 6))
def test_windows_stop_at_ends_and_at_the_trajectory(data, n):
    found = n_step_windows(data.rewards, *flags(data), GAMMA, n)
    for t, b in np.ndindex(*data.shape):
        inside = slow.window(data, t, b, n)
        assert found.length[t, b] == len(inside)
        total = sum(GAMMA**k * data.rewards[s, b] for k, s in enumerate(inside))
        assert found.reward[t, b] == pytest.approx(total, abs=1e-5)
        dead = not inside or data.terminated[inside[-1], b]
        expected = 0.0 if dead else GAMMA ** len(inside)
        assert found.discount[t, b] == pytest.approx(expected, abs=1e-6)


def test_truncation_within_the_step_uses_the_given_successor_values():
    data = slow.random_rows(0, 4, 2, 0.0)
    data.truncated[1] = True
    q_values, action = q_and_action(data)
    next_values = q_values[1:].max(-1)
    next_values[1] = 100.0
    arguments = (q_values, action, data.rewards, *flags(data), GAMMA, 3)
    default, _ = n_step_priorities(*arguments)
    found, _ = n_step_priorities(*arguments, next_values=next_values)
    np.testing.assert_array_equal(found[2:], default[2:])
    for b in range(2):
        target = data.rewards[1, b] + GAMMA * 100.0
        assert found[1, b] == pytest.approx(abs(target - q_values[1, b, action[1, b]]), rel=1e-5)


def test_inputs_stay_as_they_are():
    data = slow.random_rows(0, 6, 3, 0.3)
    before = [part.copy() for part in (data.rewards, *flags(data))]
    n_step_priorities(*q_and_action(data), data.rewards, *flags(data), GAMMA, 3)
    for old, new in zip(before, (data.rewards, *flags(data)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_n_must_be_positive():
    data = slow.random_rows(0, 3, 1, 0.0)
    with pytest.raises(ValueError, match="n >= 1"):
        n_step_windows(data.rewards, *flags(data), GAMMA, 0)
