# SPDX-License-Identifier: Apache-2.0
"""The sum tree against a plain array and cumulative sums."""

from __future__ import annotations

import numpy as np
import pytest

from veldt.replay.samplers import SumTree


def chosen_by_hand(masses: np.ndarray, draw: float) -> int:
    """The leaf in which draw * total falls, walking along the leaves."""
    target, passed = draw * masses.sum(), 0.0
    for leaf, mass in enumerate(masses):
        passed += mass
        if target < passed:
            return leaf
    return int(np.flatnonzero(masses)[-1])


@pytest.mark.parametrize("num_leaves", [1, 2, 15, 16, 17, 256, 300])
def test_draws_match_a_walk_along_the_leaves(num_leaves: int) -> None:
    """Also after updates of some leaves, repeated ones included: the last value counts."""
    random = np.random.default_rng(num_leaves)
    # Small integers: every sum is exact, so that no draw lands beside a boundary by rounding.
    masses = random.integers(0, 8, num_leaves).astype(float)
    tree = SumTree(num_leaves)
    tree.set(np.arange(num_leaves), masses)
    for _ in range(5):
        changed = random.integers(num_leaves, size=20)
        values = random.integers(0, 8, 20).astype(float)
        values[-1] = 3.0
        tree.set(changed, values)
        for leaf, value in zip(changed, values, strict=True):
            masses[leaf] = value
        np.testing.assert_array_equal(tree.leaves, masses)
        assert tree.total == masses.sum()
        draws = random.integers(0, 2**20, 200) / 2**20
        expected = [chosen_by_hand(masses, draw) for draw in draws]
        np.testing.assert_array_equal(tree.sample(draws), expected)


def test_no_drift_and_no_draw_of_nothing() -> None:
    """A huge mass that comes and goes leaves no rounding error behind."""
    tree = SumTree(1000)
    random = np.random.default_rng(0)
    masses = random.random(1000)
    masses[::2] = 0.0
    tree.set(np.arange(1000), masses)
    total = tree.total
    for _ in range(200):
        tree.set(np.array([7]), 1e16)
        tree.set(np.array([7]), masses[7])
    assert tree.total == total
    assert (tree.sample(random.random(20_000)) % 2 == 1).all()
    edge = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert (tree.sample(edge) % 2 == 1).all()


def test_nothing_is_drawn_from_an_empty_tree() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        SumTree(4).sample(np.zeros(1))
