# SPDX-License-Identifier: Apache-2.0
"""First priorities of sequences against the equations."""

import numpy as np
import pytest
from network_specs import make_spec, vector
from transcriptions import h, h_inverse

from veldt.losses.r2d2 import R2D2Options
from veldt.roles.replay import SequenceReplayOptions, SequenceTable
from veldt.types import VALUE_BEST, VALUE_TAKEN, Field, trajectory_layout

STEPS, ENVS, BURN_IN, UNROLL, GAMMA, N_STEP = 4, 3, 4, 8, 0.9, 3
SEQUENCES = R2D2Options(
    gamma=GAMMA, n_step=N_STEP, burn_in_steps=BURN_IN, unroll_steps=UNROLL, priority_eta=0.9
)


def make_layout():
    spec = make_spec(vector(2))
    values = dict.fromkeys((VALUE_TAKEN, VALUE_BEST), Field((), "float32"))
    return trajectory_layout(spec, STEPS, ENVS, values, {"hidden": Field((2,), "float32")})


def trajectories(count: int):
    """A stream of rows with random ends, cut into trajectories that share their border rows."""
    random, layout = np.random.default_rng(1), make_layout()
    rows = count * STEPS + 1
    stream = {
        "observation": random.standard_normal((rows, ENVS, 2), np.float32),
        "reward": random.standard_normal((rows, ENVS), np.float32),
        "ignored": random.random((rows, ENVS)) < 0.1,
        VALUE_TAKEN: random.standard_normal((rows, ENVS), np.float32),
        VALUE_BEST: random.standard_normal((rows, ENVS), np.float32),
    }
    ends = (random.random((rows, ENVS)) < 0.2) & ~stream["ignored"]
    stream["terminated"] = ends & (random.random((rows, ENVS)) < 0.5)
    stream["truncated"] = ends & ~stream["terminated"]
    for number in range(count):
        arrays = layout.views(np.zeros(layout.nbytes, np.uint8))
        for name, array in stream.items():
            arrays[name][:] = array[number * STEPS : (number + 1) * STEPS + 1]
        arrays["provenance"][0, :3] = (0, 0, number)
        yield stream, arrays


def slow_priority(stream, start: int, env: int) -> float:
    last = start + BURN_IN + UNROLL - 1  # the last row whose value is known
    errors = []
    for t in range(start + BURN_IN, last):
        if stream["ignored"][t, env]:
            continue
        reward, factor, row = 0.0, 1.0, t
        while True:
            reward += factor * float(stream["reward"][row, env])
            factor *= GAMMA
            over = stream["terminated"][row, env] or stream["truncated"][row, env]
            stops = row == last - 1 or stream["ignored"][row + 1, env]
            if over or stops or row == t + N_STEP - 1:
                break
            row += 1
        if not stream["terminated"][row, env]:
            reward += factor * h_inverse(float(stream[VALUE_BEST][row + 1, env]))
        errors.append(abs(h(reward) - float(stream[VALUE_TAKEN][t, env])))
    return 0.9 * max(errors) + 0.1 * np.mean(errors)


def test_first_priorities_are_those_of_the_equations_on_the_actors_values():
    table = SequenceTable(SequenceReplayOptions(), make_layout(), SEQUENCES)
    store = table.make_store()
    checked = 0
    for number, (stream, arrays) in enumerate(trajectories(12)):
        inserted = store.add(arrays).inserted
        found = table.first_priorities(store, inserted)
        start = (number + 1) * STEPS - BURN_IN - UNROLL
        for item, priority in zip(inserted, found, strict=True):
            expected = slow_priority(stream, start, int(item % ENVS))
            assert priority == pytest.approx(expected, rel=1e-4)
            checked += 1
    assert checked >= 4 * ENVS
