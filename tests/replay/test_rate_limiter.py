# SPDX-License-Identifier: Apache-2.0
"""The samples-per-insert ratio under any speeds of the two sides."""

from __future__ import annotations

import numpy as np
import pytest

from veldt.replay import RateLimiter


@pytest.mark.parametrize("insert_speed", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("ratio", "chunk", "batch"), [(0.5, 64, 32), (8.0, 1, 32), (4.0, 20, 256)])
def test_the_ratio_holds_when_one_side_is_slow(
    insert_speed: float, ratio: float, chunk: int, batch: int
) -> None:
    """Whoever's turn it is tries; neither side may run away, and together they never stop."""
    limiter = RateLimiter(ratio, 1000, 0.1, largest_insert=chunk, largest_sample=batch)
    random = np.random.default_rng(0)
    for _ in range(20_000):
        inserts = random.random() < insert_speed
        if inserts and limiter.can_insert(chunk):
            limiter.inserted(chunk)
        elif not inserts and limiter.can_sample(batch):
            limiter.sampled(batch)
        assert limiter.can_insert(chunk) or limiter.can_sample(batch)
        if limiter.num_inserted >= 1000 + chunk:
            error = abs(ratio * (limiter.num_inserted - 1000) - limiter.num_sampled)
            assert error <= limiter.error_buffer
    assert limiter.num_sampled > 10 * batch


def test_the_buffer_is_the_one_of_reverb() -> None:
    limiter = RateLimiter(4.0, 1000, 0.1)
    assert limiter.error_buffer == 1000 * 4.0 * 0.1
    limiter.inserted(999)
    assert not limiter.can_sample(1)
    limiter.inserted(1)
    assert limiter.can_sample(400)
    assert not limiter.can_sample(401)
    assert limiter.can_insert(100)
    assert not limiter.can_insert(101)
    limiter.sampled(400)
    assert not limiter.can_sample(1)
    assert limiter.can_insert(200)


def test_no_ratio_means_only_the_minimum_counts() -> None:
    assert not RateLimiter(None, 0).can_sample(), "the replay is empty"
    limiter = RateLimiter(None, 10)
    limiter.inserted(9)
    assert not limiter.can_sample(1)
    limiter.inserted(1)
    assert limiter.can_sample(10**9)
    limiter.sampled(10**6)
    assert limiter.can_insert(10**9)


def test_the_state_is_restored() -> None:
    limiter, other = RateLimiter(2.0, 10), RateLimiter(2.0, 10)
    limiter.inserted(17)
    limiter.sampled(5)
    other.load_state(limiter.state())
    assert (other.num_inserted, other.num_sampled) == (17, 5)
