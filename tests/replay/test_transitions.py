# SPDX-License-Identifier: Apache-2.0
"""Every transition that a store holds, checked field by field against a slow transcription."""

import numpy as np
import pytest
from replay_streams import Actor, Row, make_spec, window

from veldt.errors import ConfigurationError
from veldt.replay.items import Changes
from veldt.replay.transitions import TransitionStore

DISCOUNT = 0.9


class Expected:
    """What the store should hold: rows of all stored trajectories, oldest trajectory out first."""

    def __init__(self, num_blocks: int, n_step: int, frame_stack: int = 1) -> None:
        self._num_blocks, self._n_step, self._frames = num_blocks, n_step, frame_stack
        self._stored: list[tuple[Actor, int]] = []
        self._known: dict[Actor, int] = {}

    def add(self, actor: Actor) -> None:
        """`actor` has just delivered a trajectory."""
        self._stored.append((actor, actor.sequence - 1))
        self._stored = self._stored[-self._num_blocks :]
        self._known[actor] = actor.sequence * actor.num_steps + 1

    def transitions(self) -> tuple[dict[tuple, tuple[Row, dict]], set[tuple]]:
        """All that could be there, and those that must be: stacks may begin anew after a loss."""
        found, required = {}, set()
        for actor, sequence in self._stored:
            for environment in actor.environments:
                known = environment.rows[: self._known[actor]]
                for step in range(actor.num_steps):
                    start = sequence * actor.num_steps + step
                    result = window(known, start, self._n_step, DISCOUNT)
                    if result is not None:
                        row = known[start]
                        place = tuple(row.leaves["observation.place"])
                        found[place] = (row, result)
                        if self._stack_is_stored(actor, known, start):
                            required.add(place)
        return found, required

    def _stack_is_stored(self, actor: Actor, rows: list[Row], start: int) -> bool:
        """Whether the rows that hold the older frames have not been evicted yet."""
        for _ in range(self._frames - 1):
            if rows[start].first or start == 0:
                return True
            start -= 1
            if (actor, start // actor.num_steps) not in self._stored:
                return False
        return True


def check(store: TransitionStore, expected: Expected, mirror: set[int]) -> int:
    """Compare all valid items with the expected ones; how many there are."""
    indices = np.flatnonzero(store.valid)
    assert store.size == indices.size == len(mirror)
    assert set(indices.tolist()) == mirror
    transitions, required = expected.transitions()
    batch = store.sample(indices)
    places = [tuple(place) for place in batch["observation.place"]]
    assert len(set(places)) == len(places)
    assert required <= set(places) <= set(transitions)
    for i, place in enumerate(places):
        row, result = transitions[place]
        for name, value in row.leaves.items():
            np.testing.assert_array_equal(batch[name][i], value)
        assert batch["action"][i] == row.action
        assert batch["q_taken"][i] == np.float32(row.q_taken)
        assert batch["parameter_version"][i] == row.version
        assert batch["reward"][i] == np.float32(result["reward"])
        assert batch["discount"][i] == np.float32(result["discount"])
        if result["discount"] > 0:
            for name, value in result["next"].items():
                np.testing.assert_array_equal(batch["next_" + name][i], value)
    np.testing.assert_array_equal(batch["item_id"], store.ids(indices))
    return len(places)


def follow(mirror: set[int], changes: Changes) -> None:
    """Keep a mirror of the valid items from what the store reports."""
    removed, inserted = set(changes.removed.tolist()), set(changes.inserted.tolist())
    assert removed <= mirror
    assert len(removed) == changes.removed.size
    mirror -= removed
    assert not inserted & mirror
    assert len(inserted) == changes.inserted.size
    mirror |= inserted


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize(
    ("n_step", "num_steps", "num_envs"), [(1, 4, 3), (3, 4, 2), (3, 1, 3), (5, 2, 2), (4, 7, 1)]
)
def test_windows_match_the_transcription(same_step, n_step, num_steps, num_envs):
    """Two actors take turns at random through seams, evictions and a restart."""
    spec = make_spec(same_step)
    actors = [Actor(spec, num_steps, num_envs, actor) for actor in range(2)]
    num_blocks = 6
    store = TransitionStore(
        actors[0].layout,
        num_blocks * num_steps * num_envs,
        n_step=n_step,
        discount=DISCOUNT,
        outputs=("q_taken", "q_max"),
    )
    expected, mirror = Expected(num_blocks, n_step), set()
    random = np.random.default_rng(n_step)
    compared = 0
    for turn in range(40):
        which = int(random.integers(2))
        if turn in (10, 11, 25):
            actors[which] = Actor(spec, num_steps, num_envs, which, incarnation=turn)
        follow(mirror, store.add(actors[which].trajectory()))
        expected.add(actors[which])
        compared += check(store, expected, mirror)
    assert compared > 40 * num_steps * num_envs


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("padding", ["repeat", "zero", "random"])
@pytest.mark.parametrize(("n_step", "num_steps"), [(1, 5), (3, 2), (2, 1)])
def test_stacks_are_rebuilt(same_step, padding, n_step, num_steps):
    spec = make_spec(same_step, frame_stack=4)
    actors = [
        Actor(spec, num_steps, 2, actor, padding=padding, end_chance=0.1) for actor in range(2)
    ]
    store = TransitionStore(
        actors[0].layout,
        12 * num_steps * 2,
        n_step=n_step,
        discount=DISCOUNT,
        frame_stack=4,
        outputs=("q_taken", "q_max"),
    )
    expected, mirror = Expected(12, n_step, frame_stack=4), set()
    random = np.random.default_rng(3)
    for turn in range(40):
        which = int(random.integers(2))
        if turn == 20:
            actors[which] = Actor(spec, num_steps, 2, which, 1, padding=padding, end_chance=0.1)
        follow(mirror, store.add(actors[which].trajectory()))
        expected.add(actors[which])
        check(store, expected, mirror)
    assert not store.blocks.lost_observations


def test_streams_that_end_start_anew():
    """After a resume the same actors count from 0 again."""
    spec = make_spec()
    expected, mirror = Expected(8, 3), set()
    actors = [Actor(spec, 4, 2, actor, seed=1) for actor in range(2)]
    store = TransitionStore(
        actors[0].layout, 64, n_step=3, discount=DISCOUNT, outputs=("q_taken", "q_max")
    )
    for actor in actors * 2:
        follow(mirror, store.add(actor.trajectory()))
        expected.add(actor)
    store.end_streams()
    check(store, expected, mirror)
    resumed = Actor(spec, 4, 2, 2, seed=2)
    resumed.actor = 0
    follow(mirror, store.add(resumed.trajectory()))
    expected.add(resumed)
    check(store, expected, mirror)


@pytest.mark.parametrize("same_step", [False, True])
def test_td_errors_wait_for_the_values_they_need(same_step):
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
            result = window(rows, start, 2, DISCOUNT)
            bootstrap = result["next_row"].q_max
            if result["next"] is not result["next_row"].leaves:  # the policy never saw it
                bootstrap = result["last_row"].q_max
            target = result["reward"] + result["discount"] * bootstrap
            assert error == pytest.approx(abs(target - rows[start].q_taken), abs=1e-5)
            compared += 1
    assert compared > 80


def test_a_trajectory_that_does_not_continue_is_not_chained():
    """A gap in the numbers, and data of an older incarnation."""
    actor = Actor(make_spec(), 4, 2, incarnation=1)
    store = TransitionStore(actor.layout, 400, n_step=3, discount=DISCOUNT)
    store.add(actor.trajectory())
    actor.trajectory()
    gap = actor.trajectory()
    store.add(gap)
    late = Actor(make_spec(), 4, 2, incarnation=0).trajectory()
    store.add(late)
    following = store.sample(np.flatnonzero(store.valid))
    steps = following["next_observation.place"][:, 3] - following["observation.place"][:, 3]
    assert steps[following["discount"] > 0].max() <= 3


def test_stacks_that_find_no_room_are_left_out_not_wrong():
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
    assert store.blocks.lost_observations > 0
    assert store.size > 0


def test_frames_are_kept_once():
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


def test_impossible_settings_name_the_remedy():
    actor = Actor(make_spec(frame_stack=4), 4, 2)
    with pytest.raises(ConfigurationError, match="raise the capacity"):
        TransitionStore(actor.layout, 15)
    with pytest.raises(ConfigurationError, match="set frame_stack"):
        TransitionStore(actor.layout, 100, frame_stack=3)
