# SPDX-License-Identifier: Apache-2.0
"""Sequences against the rows they were cut from."""

import numpy as np
import pytest
from replay_streams import Actor, make_spec

from veldt.errors import ConfigurationError
from veldt.replay.samplers import PrioritizedSampler
from veldt.replay.sequences import SequenceStore

ROW_FIELDS = ("action", "reward", "ignored", "terminated", "truncated", "q_taken")


def check(store: SequenceStore, actors: list[Actor], known: dict[Actor, int]) -> set[tuple]:
    """Compare every sequence with its rows; where they start."""
    indices = np.flatnonzero(store.valid)
    batch = store.sample(indices)
    starts = set()
    for i in range(indices.size):
        place = batch["observation.place"][0, i].astype(int)
        actor = next(a for a in actors if (a.actor, a.incarnation) == (place[0], place[1]))
        rows = actor.environments[place[2]].rows[: known[actor]]
        starts.add(tuple(place))
        hidden = (actor.actor, place[3], place[2])
        np.testing.assert_array_equal(batch["state.hidden"][i], hidden)
        for step in range(store.length + 1):
            row = rows[place[3] + step]
            for name, value in row.leaves.items():
                np.testing.assert_array_equal(batch[name][step, i], value)
            assert batch["first"][step, i] == row.first
            if step == store.length:
                continue
            assert batch["parameter_version"][step, i] == row.version
            for name in ROW_FIELDS:
                assert batch[name][step, i] == np.float32(getattr(row, name))
            if row.final is not None and row.truncated and not row.terminated:
                final = batch["final_observation.place"][step, i]
                np.testing.assert_array_equal(final, row.final["observation.place"])
        assert not any(batch[name][-1, i].any() for name in ROW_FIELDS)
    assert len(starts) == indices.size
    return starts


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("frame_stack", [0, 4])
@pytest.mark.parametrize(("num_steps", "burn_in", "unroll"), [(4, 4, 8), (4, 0, 4), (3, 2, 6)])
def test_sequences_match_their_rows(same_step, frame_stack, num_steps, burn_in, unroll):
    spec = make_spec(same_step, frame_stack)
    actors = [Actor(spec, num_steps, 2, actor, end_chance=0.1) for actor in range(2)]
    num_blocks = 9
    store = SequenceStore(
        actors[0].layout,
        num_blocks * num_steps * 2,
        burn_in=burn_in,
        unroll=unroll,
        frame_stack=max(frame_stack, 1),
        outputs=("q_taken",),
    )
    sampler = PrioritizedSampler(store, alpha=0.9)
    random = np.random.default_rng(0)
    known: dict[Actor, int] = {}
    stored: list[tuple[Actor, int]] = []
    everyone = list(actors)
    for turn in range(40):
        which = int(random.integers(2))
        if turn == 20:
            actors[which] = Actor(spec, num_steps, 2, which, incarnation=1)
            everyone.append(actors[which])
        actor = actors[which]
        sampler.apply(store.add(actor.trajectory()))
        known[actor] = actor.sequence * num_steps + 1
        stored = [*stored, (actor, actor.sequence - 1)][-num_blocks:]
        np.testing.assert_array_equal(sampler.masses() > 0, store.valid)
        starts = check(store, everyone, known)
        if not frame_stack:
            assert starts == expected_starts(stored, known, store)
        assert starts or turn < 6


def expected_starts(
    stored: list[tuple[Actor, int]], known: dict[Actor, int], store: SequenceStore
) -> set[tuple]:
    found = set()
    for actor, sequence in stored:
        start = sequence * actor.num_steps
        if start % store.unroll == 0 and start + store.length < known[actor]:
            for env in range(len(actor.environments)):
                found.add((actor.actor, actor.incarnation, env, start))
    return found


def test_a_small_capacity_names_the_remedy():
    actor = Actor(make_spec(), 4, 2)
    with pytest.raises(ConfigurationError, match="raise the capacity"):
        SequenceStore(actor.layout, 16, burn_in=0, unroll=8)
