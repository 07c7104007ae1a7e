# SPDX-License-Identifier: Apache-2.0
"""The sum tree against a plain array and cumulative sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veldt.replay.sum_tree import SumTree


def chosen_by_hand(masses: np.ndarray, draw: float) -> int:
    """The leaf in which draw * total falls, walking along the leaves."""
    target, passed = draw * masses.sum(), 0.0
    for leaf, mass in enumerate(masses):
        passed += mass
        if target < passed:
            return leaf
    return int(np.flatnonzero(masses)[-1])


@pytest.mark.parametrize("num_leaves", [1, 2, 4, 5, 16, 17, 63, 300])
def test_draws_match_a_walk_along_the_leaves(num_leaves: int) -> None:
    random = np.random.default_rng(num_leaves)
    # Small integers: every sum is exact, so that no draw lands beside a boundary by rounding.
    masses = random.integers(0, 8, num_leaves).astype(float)
    masses[random.integers(num_leaves)] = 3.0
    tree = SumTree(num_leaves)
    tree.set(np.arange(num_leaves), masses)
    draws = random.integers(0, 2**20, 500) / 2**20
    expected = [chosen_by_hand(masses, draw) for draw in draws]
    np.testing.assert_array_equal(tree.sample(500, draws), expected)
    assert tree.total == masses.sum()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_updates_leave_the_tree_valid(data: st.DataObject) -> None:
    num_leaves = data.draw(st.integers(1, 90))
    tree = SumTree(num_leaves)
    mirror = np.zeros(num_leaves)
    for _ in range(data.draw(st.integers(1, 6))):
        size = data.draw(st.integers(0, 40))
        leaf = st.integers(0, num_leaves - 1)
        indices = np.array(data.draw(st.lists(leaf, min_size=size, max_size=size)), np.int64)
        mass = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))
        masses = np.array(data.draw(st.lists(mass, min_size=size, max_size=size)))
        tree.set(indices, masses)
        for index, value in zip(indices, masses, strict=True):
            mirror[index] = value
        tree.check_valid()
        np.testing.assert_array_equal(tree.leaves, mirror)


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
    assert (tree.sample(20_000, random) % 2 == 1).all()
    edge = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert (tree.sample(2, edge) % 2 == 1).all()


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_masses_are_refused(bad: float) -> None:
    tree = SumTree(8)
    tree.set(np.arange(8), 1.0)
    with pytest.raises(ValueError, match="finite"):
        tree.set(np.array([1, 2]), np.array([1.0, bad]))
    with pytest.raises(IndexError):
        tree.set(np.array([8]), 1.0)
    assert tree.total == 8.0
    tree.check_valid()


def test_an_empty_tree_says_so() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        SumTree(4).sample(1, np.random.default_rng(0))
