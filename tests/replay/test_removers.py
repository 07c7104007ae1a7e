# SPDX-License-Identifier: Apache-2.0
"""Which items leave, and that everything left is still right."""

from __future__ import annotations

import numpy as np
import pytest
from replay_streams import Actor, make_spec, window

from veldt.replay import Fifo, LowestPriority, PrioritizedSampler, SoftCap, TransitionStore


def assert_right(store: TransitionStore, actors: list[Actor], n_step: int) -> None:
    """Every item that is left equals the transcription."""
    batch = store.sample(np.flatnonzero(store.valid))
    for i, place in enumerate(batch["observation.place"].astype(int)):
        rows = actors[place[0]].environments[place[2]].rows
        result = window(rows, place[3], n_step, 0.9, closed=False)
        assert result is not None
        row = rows[place[3]]
        assert batch["reward"][i] == np.float32(result["reward"])
        np.testing.assert_array_equal(
            batch["observation.screen"][i], row.leaves["observation.screen"]
        )
        if result["discount"] > 0:
            for name in ("observation.place", "observation.screen"):
                np.testing.assert_array_equal(batch["next_" + name][i], result["next"][name])


def test_soft_cap_trims_the_oldest_now_and_then() -> None:
    actor = Actor(make_spec(), 5, 4)
    remover = SoftCap(max_items=100, every_calls=3)
    store = TransitionStore(actor.layout, 400, remover=remover)
    sampler = PrioritizedSampler(store)
    for _ in range(10):
        sampler.apply(store.add(actor.trajectory()))
    assert store.size > 100
    full = store.size
    for call in range(3):
        assert store.size == full, call
        sampler.apply(store.trim())
    assert 80 < store.size <= 100
    np.testing.assert_array_equal(sampler.masses() > 0, store.valid)
    places = store.sample(np.flatnonzero(store.valid))["observation.place"]
    assert places[:, 3].min() == 25  # the last five of ten trajectories
    assert remover.forced_evictions == 0
    for _ in range(30):
        store.add(actor.trajectory())
    assert remover.forced_evictions > 0


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_lowest_priority_leaves_and_takes_what_depends_on_it(num_steps: int) -> None:
    actors = [Actor(make_spec(frame_stack=4), num_steps, 2, actor) for actor in range(2)]
    num_blocks = 12
    store = TransitionStore(
        actors[0].layout, num_blocks * num_steps * 2, n_step=3, discount=0.9, frame_stack=4
    )
    sampler = PrioritizedSampler(store, alpha=1.0)
    store.remover = LowestPriority(sampler)
    random = np.random.default_rng(0)
    evicted_a_young_one = False
    for _ in range(60):
        uids = set(store.blocks.uid.tolist())
        ids = store.ids(np.flatnonzero(store.valid))
        changes = store.add(actors[random.integers(2)].trajectory())
        sampler.apply(changes, random.random(changes.inserted.size) ** 4)
        assert sampler.update(ids, random.random(ids.size) ** 4) == changes.removed.size
        np.testing.assert_array_equal(sampler.masses() > 0, store.valid)
        assert store.size == store.valid.sum()
        assert_right(store, actors, 3)
        gone = uids - set(store.blocks.uid.tolist()) - {-1}
        evicted_a_young_one |= any(uid > min(uids - {-1}) for uid in gone)
    assert evicted_a_young_one


def test_the_block_with_the_smallest_mean_priority_goes() -> None:
    actor = Actor(make_spec(), 5, 4)
    store = TransitionStore(actor.layout, 100)
    sampler = PrioritizedSampler(store, alpha=1.0)
    store.remover = LowestPriority(sampler)
    for priority in (5.0, 2.0, 1.0, 4.0, 3.0):
        changes = store.add(actor.trajectory())
        sampler.apply(changes, np.full(changes.inserted.size, priority))
    removed = store.add(actor.trajectory()).removed
    # Its own items, and those of the block before whose next observation lay in it.
    assert set(np.unique(sampler.masses()[removed])) == {1.0, 2.0}
    assert (sampler.masses()[removed] == 2.0).sum() <= 4


def test_an_actors_newest_block_stays_however_low_its_priority() -> None:
    actor = Actor(make_spec(), 5, 4)
    store = TransitionStore(actor.layout, 100)
    sampler = PrioritizedSampler(store, alpha=1.0)
    store.remover = LowestPriority(sampler)
    for priority in (5.0, 2.0, 3.0, 4.0, 0.1):
        newest = store.blocks.blocks_added
        changes = store.add(actor.trajectory())
        sampler.apply(changes, np.full(changes.inserted.size, priority))
    store.add(actor.trajectory())
    assert newest in store.blocks.uid


class Second(Fifo):
    """Evicts the second oldest block."""

    def victims(self, store):
        return [store.blocks.order[1][0]]


def test_a_truncated_window_outlives_the_block_that_followed_it() -> None:
    actor = Actor(make_spec(same_step=True), 4, 8)
    store = TransitionStore(actor.layout, 96, remover=Second())
    for _ in range(4):
        store.add(actor.trajectory())
    last = np.arange(24, 32)  # the last row of the oldest block
    rows = [environment.rows[3] for environment in actor.environments]
    cut = np.array([row.truncated and not row.terminated for row in rows])
    assert cut.any()
    assert (~cut).any()
    np.testing.assert_array_equal(store.valid[last], cut)
