# SPDX-License-Identifier: Apache-2.0
"""What is drawn, how often, with which weight; late priorities; the ratio of samples to inserts."""

import numpy as np
import pytest
from replay_streams import Actor, make_spec

from veldt.replay.samplers import PrioritizedSampler, RateLimiter, SumTree, UniformSampler
from veldt.replay.transitions import TransitionStore


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
def test_counts_fit_the_priorities(alpha):
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
def test_weights_match_the_equation(beta):
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


def test_updates_of_evicted_items_are_counted_and_left_alone():
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
def test_priorities_that_are_not_finite_are_refused(bad):
    sampler, store, _ = prioritized()
    ids = store.ids(np.flatnonzero(store.valid)[:2])
    with pytest.raises(ValueError, match="finite"):
        sampler.update(ids, np.array([1.0, bad]))


@pytest.mark.parametrize("sparse", [False, True])
def test_uniform_draws_are_uniform_over_valid_items(sparse):
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


def test_each_priority_reaches_its_own_item_beside_stale_ones():
    sampler, store, _ = prioritized(alpha=1.0)
    present = np.flatnonzero(store.valid)[:3]
    ids = store.ids(present)
    gone = np.array([-1, -1])
    mixed = np.array([gone[0], ids[0], gone[1], ids[1], ids[2]])
    assert sampler.update(mixed, np.array([100.0, 1.0, 200.0, 2.0, 3.0])) == 2
    np.testing.assert_array_equal(sampler.masses()[present], [1.0, 2.0, 3.0])


def test_the_soft_cap_trims_the_oldest_now_and_then():
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


def test_uniform_draws_reach_the_last_item():
    store, _ = filled()
    store.valid[: store.range] = True
    store.size = store.range
    indices, _ = UniformSampler(store).sample(50 * store.range, np.random.default_rng(0))
    assert set(indices) == set(range(store.range))


def test_new_items_enter_at_the_largest_priority_so_far():
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


def chosen_by_hand(masses: np.ndarray, draw: float) -> int:
    """The leaf in which draw * total falls, walking along the leaves."""
    target, passed = draw * masses.sum(), 0.0
    for leaf, mass in enumerate(masses):
        passed += mass
        if target < passed:
            return leaf
    return int(np.flatnonzero(masses)[-1])


@pytest.mark.parametrize("num_leaves", [1, 2, 31, 32, 33, 300, 1025])
def test_draws_match_a_walk_along_the_leaves(num_leaves):
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
        draws = random.integers(0, 2**20, 200) / 2**20
        expected = [chosen_by_hand(masses, draw) for draw in draws]
        np.testing.assert_array_equal(tree.sample(draws), expected)


def test_no_drift_and_no_draw_of_nothing():
    """A huge mass that comes and goes leaves no rounding error behind."""
    tree = SumTree(1000)
    random = np.random.default_rng(0)
    masses = random.random(1000)
    masses[::2] = 0.0
    tree.set(np.arange(1000), masses)
    draws = random.random(1000)
    before = tree.sample(draws)
    for _ in range(200):
        tree.set(np.array([7]), 1e16)
        tree.set(np.array([7]), masses[7])
    np.testing.assert_array_equal(tree.sample(draws), before)
    assert (tree.sample(random.random(20_000)) % 2 == 1).all()
    edge = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert (tree.sample(edge) % 2 == 1).all()


def test_nothing_is_drawn_from_an_empty_tree():
    with pytest.raises(ValueError, match="nothing to draw"):
        SumTree(4).sample(np.zeros(1))


@pytest.mark.parametrize("insert_speed", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("ratio", "chunk", "batch"), [(0.5, 64, 32), (8.0, 1, 32), (4.0, 20, 256)])
def test_the_ratio_holds_when_one_side_is_slow(insert_speed, ratio, chunk, batch):
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


def test_the_buffer_is_the_one_of_reverb():
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


def test_no_ratio_means_only_the_minimum_counts():
    assert not RateLimiter(None, 0).can_sample(), "the replay is empty"
    limiter = RateLimiter(None, 10)
    limiter.inserted(9)
    assert not limiter.can_sample(1)
    limiter.inserted(1)
    assert limiter.can_sample(10**9)
    limiter.sampled(10**6)
    assert limiter.can_insert(10**9)
