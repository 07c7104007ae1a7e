# SPDX-License-Identifier: Apache-2.0
"""Several policies in one trajectory: each acts and learns as if the others were not there."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from wiring import FactoryOf, OpenRun, context, opened

from veldt.losses.ppo import Appo, ClippedOptions
from veldt.networks import FlatParameters
from veldt.population.column_policy import ColumnPolicy
from veldt.population.column_sorter import ColumnSorter, sorted_layout
from veldt.roles.inference.batched_policy import BatchedPolicy, state_size
from veldt.types import Batch, slots_over

STEPS, ENVS = 30, 8
GRU = {"recurrent": "gru", "recurrent_size": 8}


def truncating(num_envs, mode=AutoresetMode.NEXT_STEP):
    """CartPole whose episodes end by a time limit as often as by a fall."""
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=14)
    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def truncating_within_the_step(num_envs):
    return truncating(num_envs, AutoresetMode.SAME_STEP)


CASES = {
    "feedforward": {},
    "gru": GRU,
    "next_step": {"env": truncating, **GRU},
    "same_step": {"env": truncating_within_the_step, **GRU},
}


class OneBatch:
    """A source with one batch."""

    def __init__(self, arrays):
        self.batch, self.released = Batch(arrays), 0

    def take_batch(self):
        batch, self.batch = self.batch, None
        return batch

    def release(self, batch):
        self.released += 1


class Kept:
    """A sink with room for `room` batches that keeps what was committed."""

    def __init__(self, layout, room):
        self._free = slots_over(layout, np.zeros(layout.nbytes * room, np.uint8), room)
        self.arrays = []

    def reserve(self):
        return self._free.pop() if self._free else None

    def commit(self, slot):
        self.arrays.append(slot.arrays)


def mixed_trajectory(options, assignment="episode"):
    """The layout, network and one real trajectory in which policies change within columns."""
    with OpenRun(
        "sample_factory",
        num_policies=2,
        policy_assignment=assignment,
        envs_per_actor=ENVS,
        groups_per_actor=1,
        trajectory_steps=STEPS,
        batch_trajectories=1,
        seed=3,
        **options,
    ) as run:
        source, taken = run.role("sorter-0").source, []
        take = source.take_batch

        def spying():
            batch = take()
            if batch is not None:
                taken.append({name: array.copy() for name, array in batch.arrays.items()})
            return batch

        source.take_batch = spying
        while len(taken) < 3:
            run.step()
        layout = next(q.spec.layout for q in run.topology.queues if q.spec.name == "trajectories")
        return layout, run.topology.network.make(), taken[2]


def sort(layout, arrays, columns=1):
    """By policy: the columns it learns from, side by side."""
    target = sorted_layout(layout, columns)
    sinks = [Kept(target, 2 * ENVS) for _ in range(2)]
    source = OneBatch(arrays)
    sorter = opened(ColumnSorter(source, sinks, target), context())
    assert sorter.step()
    assert source.released == 1
    assert not sorter.step()
    return [
        {
            name: np.concatenate([piece[name] for piece in sink.arrays], axis=field.join_axis)
            for name, field in target.items()
        }
        for sink in sinks
    ]


def segments(arrays, policy):
    """(column, first row, last row) of each stretch that `policy` played, slowly."""
    for column in range(ENVS):
        start = None
        for row in range(STEPS + 1):
            mine = row < STEPS and arrays["policy"][row, column] == policy
            if mine and start is None:
                start = row
            elif not mine and start is not None:
                yield column, start, row - 1
                start = None


def separated(layout, arrays, policy):
    """Each stretch of a policy as a trajectory of its own that begins at row 0; the rest of it are
    rows that nobody learns from."""
    found = list(segments(arrays, policy))
    apart = {}
    for name, field in sorted_layout(layout, len(found)).items():
        apart[name] = np.zeros(field.shape, field.dtype)
    apart["ignored"][:] = True
    for place, (column, first, last) in enumerate(found):
        for name, array in apart.items():
            if name.startswith("state."):
                if first == 0:
                    array[place] = arrays[name][column]
                continue
            rows = slice(first, last + (1 if name == "ignored" else 2))  # and the row to bootstrap
            array[: rows.stop - rows.start, place] = arrays[name][rows, column]
    return apart


def gradient(network, arrays):
    objective = Appo(ClippedOptions())
    objective.open(network)
    network.zero_grad()
    [part] = objective.passes({name: torch.from_numpy(array) for name, array in arrays.items()})
    objective(part).total.backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_policy_learns_as_from_its_own_episodes_apart(options):
    layout, network, arrays = mixed_trajectory(options)
    policies = arrays["policy"][:-1]
    assert (policies != policies[0]).any(), "no column changes its policy"
    assert arrays["terminated"][:-1].any(), "no episode ends in between"
    assert arrays["truncated"][:-1].any() == ("env" in options)
    for policy, learned in enumerate(sort(layout, arrays)):
        own = (arrays["policy"][:-1] == policy) & ~arrays["ignored"][:-1]
        assert np.count_nonzero(~learned["ignored"][:-1]) == np.count_nonzero(own)
        apart = separated(layout, arrays, policy)
        together = gradient(network, learned)
        assert together.abs().max() > 1e-4
        torch.testing.assert_close(together, gradient(network, apart), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_what_the_other_policy_did_does_not_matter(options):
    layout, network, arrays = mixed_trajectory(options)
    before = [gradient(network, learned) for learned in sort(layout, arrays)]
    random = np.random.default_rng(0)
    for policy in range(2):
        spoiled = {name: array.copy() for name, array in arrays.items()}
        # The last row of a column, and rows that reset, are bootstrapped from.
        foreign = np.zeros_like(arrays["first"])
        foreign[:-1] = arrays["policy"][:-1] != policy
        for name in ("observation", "reward", "behaviour_logits", "behaviour_value"):
            noise = random.normal(size=spoiled[name].shape).astype(np.float32)
            spoiled[name][foreign] += 5.0 * noise[foreign]
        after = gradient(network, sort(layout, spoiled)[policy])
        torch.testing.assert_close(before[policy], after, rtol=1e-4, atol=1e-6)


def test_policies_change_only_where_an_episode_begins():
    _, _, arrays = mixed_trajectory({})
    changes = arrays["policy"][1:-1] != arrays["policy"][:-2]
    assert changes.any()
    assert arrays["first"][1:-1][changes].all()
    _, _, fixed = mixed_trajectory({}, assignment="environment")
    np.testing.assert_array_equal(fixed["policy"][:-1], np.tile(np.arange(ENVS) % 2, (STEPS, 1)))


def test_versions_of_other_policies_do_not_enter_the_lag():
    layout, _, arrays = mixed_trajectory({})
    arrays["parameter_version"][:] = np.where(arrays["policy"] == 1, 1000, 7)
    for version, learned in zip((7, 1000), sort(layout, arrays), strict=True):
        assert (learned["parameter_version"][:-1] == version).all()


def test_a_column_waits_while_its_learner_is_behind():
    layout, _, arrays = mixed_trajectory({})
    arrays["policy"][:] = 0
    target = sorted_layout(layout, 3)
    sinks, source = [Kept(target, 2), Kept(target, 1)], OneBatch(arrays)
    sorter = opened(ColumnSorter(source, sinks, target), context())
    assert sorter.step()
    assert len(sinks[0].arrays) == 2, "six of eight columns had room"
    assert not sorter.step()
    assert source.released == 0
    sinks[0]._free = slots_over(target, np.zeros(target.nbytes, np.uint8), 1)
    assert sorter.step()
    assert source.released == 1
    got = np.concatenate([piece["observation"] for piece in sinks[0].arrays], axis=1)
    np.testing.assert_array_equal(got, arrays["observation"][:, :6])


class Board:
    def __init__(self, vector):
        self._vector = vector

    def pull(self, into, newer_than):
        if newer_than >= 4:
            return None
        into[:] = self._vector
        return 4


def test_policies_answer_their_own_columns_as_if_alone():
    """Two policies over the same two rows write what one policy alone would, and nothing else."""
    layout, network, arrays = mixed_trajectory(GRU)
    factory = FactoryOf(lambda: network)
    slots = slots_over(layout, np.zeros(layout.nbytes * 2, np.uint8), 2)
    for slot in slots:
        for name, array in slot.arrays.items():
            array[:] = arrays[name]
        slot["parameter_version"][:] = -1
    slots[1]["policy"][:] = 1 - slots[0]["policy"]
    vector = FlatParameters(network).numpy().copy()
    hidden = next(name for name in layout if name.startswith("state."))
    rows, groups = [(slots[0], 0), (slots[1], 5)], [1, 0]
    random = np.random.default_rng(0)
    memory = random.normal(size=state_size(network, 2, ENVS)).astype(np.float32)

    whole = BatchedPolicy(factory, Board(vector))
    whole.open(context(), ENVS, 2, memory.copy())
    whole.refresh()
    before = [slot.raw.copy() for slot in slots]
    whole.act(rows, groups)
    wanted = [slot["behaviour_logits"][row].copy() for slot, row in rows]
    wanted_state = slots[0][hidden].copy()
    for slot, raw in zip(slots, before, strict=True):
        slot.raw[:] = raw

    state = memory.copy()
    policies = [ColumnPolicy(factory, Board(vector), policy=policy) for policy in range(2)]
    for policy in policies:
        policy.open(context(), ENVS, 2, state)
    policies[0].refresh()
    policies[0].act(rows, groups)
    for (slot, row), logits in zip(rows, wanted, strict=True):
        own = slot["policy"][row] == 0
        np.testing.assert_allclose(slot["behaviour_logits"][row, own], logits[own], atol=1e-6)
        assert (slot["parameter_version"][row, own] == 4).all()
        assert (slot["parameter_version"][row, ~own] == -1).all()
    policies[1].refresh()
    policies[1].act(rows, groups)
    for (slot, row), logits in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(slot["behaviour_logits"][row], logits, atol=1e-6)
    np.testing.assert_array_equal(slots[0][hidden], wanted_state)
    assert not np.array_equal(state, memory)
    np.testing.assert_allclose(state, whole._states[0].ravel(), atol=1e-6)
