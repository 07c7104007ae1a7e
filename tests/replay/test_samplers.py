# SPDX-License-Identifier: Apache-2.0
"""What is drawn how often, with which weight, and what happens to late priorities."""

from __future__ import annotations

import numpy as np
import pytest
from replay_streams import Actor, make_spec

from veldt.replay import PrioritizedSampler, TransitionStore, UniformSampler


def filled(num_trajectories: int = 8, capacity: int = 160) -> tuple[TransitionStore, Actor]:
    actor = Actor(make_spec(), 5, 4, seed=1)
    store = TransitionStore(actor.layout, capacity, n_step=2)
    for _ in range(num_trajectories):
        store.add(actor.trajectory())
    return store, actor


def prioritized(**options: object) -> tuple[PrioritizedSampler, TransitionStore, np.ndarray]:
    """A sampler over a filled store, and the priorities of all its items."""
    actor = Actor(make_spec(), 5, 4, seed=1)
    store = TransitionStore(actor.layout, 160, n_step=2)
    sampler = PrioritizedSampler(store, **options)  # type: ignore[arg-type]
    random = np.random.default_rng(5)
    priorities = np.zeros(store.capacity)
    for _ in range(12):
        changes = store.add(actor.trajectory())
        fresh = random.random(changes.inserted.size) * 5 + 0.01
        sampler.apply(changes, fresh)
        priorities[changes.removed] = 0.0
        priorities[changes.inserted] = fresh
    return sampler, store, priorities


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Statistic in standard deviations above its mean; the fit is bad far above 0."""
    drawn = probabilities > 0
    assert not counts[~drawn].any()
    expected = counts.sum() * probabilities[drawn]
    freedom = drawn.sum() - 1
    return ((counts[drawn] - expected) ** 2 / expected).sum() / freedom * (freedom / 2) ** 0.5 - (
        freedom / 2
    ) ** 0.5


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_counts_fit_the_priorities(alpha: float) -> None:
    """Chi-square: within 5 standard deviations of p^alpha, and far off for another exponent."""
    sampler, store, priorities = prioritized(alpha=alpha)
    random = np.random.default_rng(0)
    counts = np.zeros(store.capacity)
    for _ in range(200):
        indices, _ = sampler.sample(512, random)
        np.add.at(counts, indices, 1)
    masses = np.where(priorities > 0, priorities**alpha, 0.0)
    assert chi_square(counts, masses / masses.sum()) < 5
    wrong = np.where(priorities > 0, priorities ** (alpha + 0.3), 0.0)
    assert chi_square(counts, wrong / wrong.sum()) > 20


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_match_the_equation(beta: float) -> None:
    sampler, store, priorities = prioritized(alpha=0.6, beta=beta)
    indices, weights = sampler.sample(64, np.random.default_rng(3))
    # P(i) = p_i^alpha / sum_k p_k^alpha; w_i = (N P(i))^-beta / max w
    present = priorities > 0
    masses = np.where(present, priorities, 0) ** 0.6 * present
    probabilities = masses / masses.sum()
    unscaled = (present.sum() * probabilities[indices]) ** -beta
    np.testing.assert_allclose(weights, unscaled / unscaled.max(), rtol=1e-6)
    np.testing.assert_allclose(sampler.priorities(indices), priorities[indices], rtol=1e-9)
    assert weights.dtype == np.float32
    assert present.sum() == store.size


def test_updates_of_evicted_items_are_counted_and_left_alone() -> None:
    actor = Actor(make_spec(), 5, 4, seed=2)
    store = TransitionStore(actor.layout, 60, n_step=2)
    sampler = PrioritizedSampler(store, alpha=1.0)
    seen: dict[int, tuple[float, ...]] = {}
    stale = 0
    for _ in range(12):
        sampler.apply(store.add(actor.trajectory()))
        before = sampler.masses().copy()
        gone = [item for item in seen if item not in store.ids(np.flatnonzero(store.valid))]
        if gone:
            assert sampler.update(np.array(gone), np.full(len(gone), 7.0)) == len(gone)
            stale += len(gone)
            np.testing.assert_array_equal(sampler.masses(), before)
        batch = store.sample(np.flatnonzero(store.valid))
        for item, place in zip(batch["item_id"], batch["observation.place"], strict=True):
            assert seen.setdefault(int(item), tuple(place)) == tuple(place)  # never used twice
    assert stale > 0
    mixed = np.array([gone[0], store.ids(np.flatnonzero(store.valid)[:1])[0]])
    assert sampler.update(mixed, np.array([9.0, 9.0])) == 1
    assert (sampler.masses() == 9.0).sum() == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_priorities_that_are_not_finite_are_refused(bad: float) -> None:
    sampler, store, _ = prioritized()
    ids = store.ids(np.flatnonzero(store.valid)[:2])
    with pytest.raises(ValueError, match="finite"):
        sampler.update(ids, np.array([1.0, bad]))


@pytest.mark.parametrize("sparse", [False, True])
def test_uniform_draws_are_uniform_over_valid_items(sparse: bool) -> None:
    store, _ = filled()
    if sparse:
        store._invalidate(np.flatnonzero(store.valid)[10:])
    sampler = UniformSampler(store)
    random = np.random.default_rng(0)
    counts = np.zeros(store.capacity)
    for _ in range(100):
        indices, weights = sampler.sample(512, random)
        assert indices.size == 512
        assert (weights == 1).all()
        np.add.at(counts, indices, 1)
    assert chi_square(counts, store.valid / store.size) < 5


def test_each_priority_reaches_its_own_item_beside_stale_ones() -> None:
    sampler, store, _ = prioritized(alpha=1.0)
    present = np.flatnonzero(store.valid)[:3]
    ids = store.ids(present)
    gone = np.array([-1, -1])
    mixed = np.array([gone[0], ids[0], gone[1], ids[1], ids[2]])
    assert sampler.update(mixed, np.array([100.0, 1.0, 200.0, 2.0, 3.0])) == 2
    np.testing.assert_array_equal(sampler.masses()[present], [1.0, 2.0, 3.0])


def test_the_soft_cap_trims_the_oldest_now_and_then() -> None:
    actor = Actor(make_spec(), 5, 4)
    store = TransitionStore(actor.layout, 400, soft_cap=100, trim_period=3)
    sampler = PrioritizedSampler(store)
    for _ in range(10):
        sampler.apply(store.add(actor.trajectory()))
    full = store.size
    assert full > 100
    for call in range(3):
        assert store.size == full, call
        sampler.apply(store.trim())
    assert 80 < store.size <= 100
    np.testing.assert_array_equal(sampler.masses() > 0, store.valid)
    places = store.sample(np.flatnonzero(store.valid))["observation.place"]
    assert places[:, 3].min() == 25  # the last five of ten trajectories


def test_uniform_draws_reach_the_last_item() -> None:
    store, _ = filled()
    store.valid[: store.range] = True
    store.size = store.range
    indices, _ = UniformSampler(store).sample(50 * store.range, np.random.default_rng(0))
    assert set(indices) == set(range(store.range))


def test_new_items_enter_at_the_largest_priority_so_far() -> None:
    actor = Actor(make_spec(), 5, 4)
    store = TransitionStore(actor.layout, 160)
    sampler = PrioritizedSampler(store, alpha=0.5)
    changes = store.add(actor.trajectory())
    sampler.apply(changes)
    assert (sampler.masses()[changes.inserted] == 1.0).all()
    some = store.ids(changes.inserted[:2])
    sampler.update(some, np.array([16.0, 3.0]))
    sampler.update(some, np.array([2.0, 2.0]))  # the largest one seen does not fall
    changes = store.add(actor.trajectory())
    sampler.apply(changes)
    assert (sampler.masses()[changes.inserted] == 4.0).all()
