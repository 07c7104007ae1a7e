# SPDX-License-Identifier: Apache-2.0
"""IMPALA's replay: half of each batch, uniform over a FIFO of single trajectories."""

import numpy as np
import pytest
from network_specs import make_spec, vector

from veldt.context import NodeContext
from veldt.roles.trajectory_sources import TrajectoryReplay, TrajectoryReplayOptions
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import Batch, Field, trajectory_layout

STEPS, ENVS = 3, 4
SPEC = make_spec(vector(2))
LAYOUT = trajectory_layout(SPEC, STEPS, ENVS, {}, {"hidden": Field((5,), "float32")})


class Numbered:
    """Batch k has column numbers ENVS k, ENVS k + 1, ... in every field, and version k."""

    def __init__(self):
        self.taken = self.released = 0
        self._arrays = LAYOUT.views(np.zeros(LAYOUT.nbytes, np.uint8))

    def take_batch(self):
        columns = self.taken * ENVS + np.arange(ENVS)
        for name, array in self._arrays.items():
            axis = LAYOUT[name].join_axis
            if array.shape[axis] == ENVS and array.dtype != bool:
                shape = [1] * array.ndim
                shape[axis] = ENVS
                array[:] = columns.reshape(shape)
        self._arrays["parameter_version"][:] = self.taken
        self.taken += 1
        return Batch(self._arrays, [object()])

    def release(self, batch):
        assert batch.slots
        self.released += 1


def make(capacity, fraction):
    source = Numbered()
    telemetry = NodeTelemetry()
    context = NodeContext("learner-0", 0, seed=1, telemetry=telemetry)
    replay = TrajectoryReplay(source, LAYOUT, TrajectoryReplayOptions(fraction, capacity))
    replay.open(context)
    return source, telemetry, replay


def columns_of(batch):
    return batch["reward"][0].astype(int)


@pytest.mark.parametrize(("fraction", "replayed"), [(0.5, 4), (0.75, 12), (0.2, 1)])
def test_the_replayed_share_of_each_batch_is_as_asked(fraction, replayed):
    source, telemetry, replay = make(100, fraction)
    fresh_rows = 0
    for number in range(12):
        batch = replay.take_batch()
        columns = columns_of(batch)
        assert list(columns[:ENVS]) == list(range(number * ENVS, number * ENVS + ENVS))
        fresh_rows += ENVS * STEPS
        if number * ENVS >= replayed:  # enough to draw from
            assert len(columns) == ENVS + replayed
            assert (columns[ENVS:] < number * ENVS).all(), "only trajectories of earlier batches"
        else:
            assert len(columns) == ENVS
            assert source.released == number, "the batch is a view of slots that are still held"
        replay.release(batch)
        assert source.released == source.taken
    full_batches = 12 - -(-replayed // ENVS)
    assert telemetry.counter("replayed_env_steps").value == full_batches * replayed * STEPS


def test_every_field_of_a_replayed_trajectory_is_its_own():
    _, _, replay = make(100, 0.5)
    for _ in range(10):
        batch = replay.take_batch()
        replay.release(batch)
    columns = columns_of(batch)
    assert batch["observation"].shape == (STEPS + 1, 2 * ENVS, 2)
    assert (batch["observation"] == columns[None, :, None]).all()
    assert (batch["action"] == columns).all()
    assert (batch["state.hidden"] == columns[:, None]).all()
    assert (batch["parameter_version"] == columns // ENVS).all()


def test_the_oldest_go_first_and_what_is_kept_is_drawn_evenly():
    capacity = 6
    _, _, replay = make(capacity, 0.5)
    ages = []
    for number in range(400):
        batch = replay.take_batch()
        columns = columns_of(batch).copy()
        replay.release(batch)
        if number > 10:
            ages.extend(number * ENVS - columns[ENVS:])
    counts = np.bincount(ages, minlength=capacity + 1)
    assert counts[0] == 0
    assert len(counts) == capacity + 1, "older ones are gone"
    expected = len(ages) / capacity
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 20.5  # chi-square, 5 freedoms, 0.1%
