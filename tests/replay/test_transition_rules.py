# SPDX-License-Identifier: Apache-2.0
"""Rules of the transition store one by one: seams, priorities, losses, memory, bad settings."""

from __future__ import annotations

import numpy as np
import pytest
from replay_streams import Actor, make_spec, window

from veldt.errors import ConfigurationError
from veldt.replay import TransitionStore

DISCOUNT = 0.9


@pytest.mark.parametrize("same_step", [False, True])
def test_td_errors_wait_for_the_values_they_need(same_step: bool) -> None:
    actor = Actor(make_spec(same_step), 3, 2)
    store = TransitionStore(
        actor.layout,
        600,
        n_step=2,
        discount=DISCOUNT,
        outputs=("q_taken", "q_max"),
        wait_for_outputs=True,
    )
    compared = 0
    for _ in range(30):
        inserted = store.add(actor.trajectory()).inserted
        errors = store.td_errors(inserted, "q_taken", "q_max")
        for error, place in zip(errors, store.sample(inserted)["observation.place"], strict=True):
            rows = actor.environments[int(place[2])].rows
            start = int(place[3])
            result = window(rows, start, 2, DISCOUNT, closed=False)
            assert result is not None
            bootstrap = result["next_row"].q_max
            if result["next"] is not result["next_row"].leaves:  # the policy never saw it
                bootstrap = result["last_row"].q_max
            target = result["reward"] + result["discount"] * bootstrap
            assert error == pytest.approx(abs(target - rows[start].q_taken), abs=1e-5)
            compared += 1
    assert compared > 80


def test_a_trajectory_that_does_not_continue_is_not_chained() -> None:
    """A gap in the numbers, repeats, and data of an older incarnation."""
    actor = Actor(make_spec(), 4, 2, incarnation=1)
    store = TransitionStore(actor.layout, 400, n_step=3, discount=DISCOUNT)
    store.add(actor.trajectory())
    actor.trajectory()
    gap = actor.trajectory()
    store.add(gap)
    assert not store.add(gap).inserted.size
    assert store.blocks.dropped["repeated"] == 1
    late = Actor(make_spec(), 4, 2, incarnation=0).trajectory()
    assert not store.add(late).inserted.size
    assert store.blocks.dropped["old_incarnation"] == 1
    following = store.sample(np.flatnonzero(store.valid))
    steps = following["next_observation.place"][:, 3] - following["observation.place"][:, 3]
    assert steps[following["discount"] > 0].max() <= 3


def test_stacks_that_find_no_room_are_left_out_not_wrong() -> None:
    """Random padding needs three spare frames per episode, more than there are."""
    spec = make_spec(frame_stack=4)
    actor = Actor(spec, 5, 2, padding="random", end_chance=0.9)
    store = TransitionStore(
        actor.layout, 40, discount=DISCOUNT, frame_stack=4, outputs=("q_taken", "q_max")
    )
    for _ in range(12):
        store.add(actor.trajectory())
        batch = store.sample(np.flatnonzero(store.valid))
        for i, place in enumerate(batch["observation.place"]):
            row = actor.environments[int(place[2])].rows[int(place[3])]
            screen = row.leaves["observation.screen"]
            np.testing.assert_array_equal(batch["observation.screen"][i], screen)
    assert store.blocks.dropped["no_spare_entry"] > 0
    assert store.size > 0


def test_frames_are_kept_once() -> None:
    """Memory of stacked frames is one frame per row, a few percent of padding and tails aside."""
    spec = make_spec(frame_stack=4, mask=False)
    actor = Actor(spec, 20, 4, padding="zero", end_chance=0.05)
    stores = [
        TransitionStore(actor.layout, 1600, frame_stack=stack, outputs=()) for stack in (4, 1)
    ]
    for _ in range(30):
        trajectory = actor.trajectory()
        for store in stores:
            store.add(trajectory)
    frame, place, places = 16, 16, 4 * 4
    per_row = frame + place + places + 8 + 2
    compact, plain = (sum(array.nbytes for array in store.state().values()) for store in stores)
    items = 1600 * (4 + 4 + 4 + 1)
    assert compact <= 1.06 * (1600 * per_row + items) + 20 * 8
    assert plain - compact > 0.95 * 1600 * (3 * frame - places)


def test_impossible_settings_name_the_remedy() -> None:
    actor = Actor(make_spec(frame_stack=4), 4, 2)
    with pytest.raises(ConfigurationError, match="raise the capacity"):
        TransitionStore(actor.layout, 15)
    with pytest.raises(ConfigurationError, match="set frame_stack"):
        TransitionStore(actor.layout, 100, frame_stack=3)


def test_windows_without_all_their_frames_are_not_closed() -> None:
    actor = Actor(make_spec(frame_stack=4), 4, 4, padding="random")
    store = TransitionStore(actor.layout, 160, n_step=4, discount=DISCOUNT, frame_stack=4)
    store.blocks.spares.touched = store.blocks.spares.size  # no room for a single older frame
    store.add(actor.trajectory())
    closed = store.end_streams().inserted
    whole = store.blocks.whole
    assert not whole[: store.range].all()
    assert whole[closed].all()
    assert whole[store._next[closed]].all()
