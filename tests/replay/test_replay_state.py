# SPDX-License-Identifier: Apache-2.0
"""A replay that was saved and restored goes on exactly like the one that was not."""

import numpy as np
import pytest
from replay_streams import Actor, make_spec

from veldt.replay.samplers import PrioritizedSampler
from veldt.replay.sequences import SequenceStore
from veldt.replay.transitions import TransitionStore


def make_store(kind: str, actor: Actor, capacity: int = 240) -> TransitionStore | SequenceStore:
    if kind == "sequences":
        return SequenceStore(actor.layout, capacity, burn_in=4, unroll=4, frame_stack=4)
    cap = {"soft_cap": 120, "trim_period": 2, "outputs": ("q_max",)}
    return TransitionStore(actor.layout, capacity, n_step=3, frame_stack=4, **cap)


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_the_future_is_the_same(kind, same_step):
    actors = [
        Actor(make_spec(same_step, 4), 4, 3, actor, padding="random", end_chance=0.1)
        for actor in range(2)
    ]
    store = make_store(kind, actors[0])
    sampler = PrioritizedSampler(store)
    for turn in range(31):
        sampler.apply(store.add(actors[turn % 2].trajectory()))
    sampler.update(store.ids(np.flatnonzero(store.valid)[:9]), np.arange(1.0, 10.0))

    other = make_store(kind, actors[0])
    other_sampler = PrioritizedSampler(other)
    saved = {name: array.copy() for name, array in store.state().items()}
    assert all(isinstance(array, np.ndarray) for array in saved.values())
    saved_sampler = sampler.state()
    store_before = {name: array.copy() for name, array in store.state().items()}
    other.load_state(saved)
    other_sampler.load_state(saved_sampler)
    for name, array in other.state().items():
        np.testing.assert_array_equal(array, store_before[name], err_msg=name)

    for turn in range(31, 70):
        trajectory = actors[turn % 2].trajectory()
        batches = []
        for one, picks in ((store, sampler), (other, other_sampler)):
            picks.apply(one.add(trajectory))
            picks.apply(one.trim())
            indices, weights = picks.sample(32, np.random.default_rng(turn))
            batch = {**one.sample(indices), "weight": weights}
            picks.update(batch["item_id"], weights)
            batches.append(batch)
        for name, array in batches[0].items():
            np.testing.assert_array_equal(array, batches[1][name], err_msg=name)
    assert store.size == other.size
    assert sampler.masses().sum() == other_sampler.masses().sum()


def test_a_smaller_store_refuses_the_state():
    actor = Actor(make_spec(frame_stack=4), 4, 3)
    store = make_store("transitions", actor)
    for _ in range(20):
        store.add(actor.trajectory())
    with pytest.raises(ValueError, match="same capacity"):
        make_store("transitions", actor, capacity=48).load_state(store.state())
