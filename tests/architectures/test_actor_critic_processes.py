# SPDX-License-Identifier: Apache-2.0
"""A3C and A2C over processes: a killed worker stops nobody, a slow actor stops everybody."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
from driving import advance_until

from veldt.backends.process.backend import ProcessBackend
from veldt.options import RunOptions
from veldt.run.plan import make_plan

pytestmark = pytest.mark.slow

SLOW_STEP_SECONDS = 0.02


@contextmanager
def running(architecture: str, env, num_actors: int, **own) -> Iterator[ProcessBackend]:
    options = RunOptions(
        env=env, backend="process", num_actors=num_actors, envs_per_actor=2, total_env_steps=10**9
    )
    plan = make_plan(architecture, options, {"trajectory_steps": 5, **own})
    backend = ProcessBackend(plan.topology, seed=1)
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()


def counters(backend, name) -> list[float]:
    """This counter of every node that has it, in the topology's order."""
    found = (snapshot.counters for snapshot in backend.snapshots())
    return [counter[name] for counter in found if name in counter]


def both_updated(backend, times: int) -> bool:
    found = counters(backend, "updates")
    return len(found) == 2 and min(found) > times


def test_a_killed_worker_leaves_the_rest_training_and_comes_back():
    with running("a3c", "CartPole-v1", num_actors=2) as backend:

        def updates() -> list[float]:
            return (counters(backend, "updates") + [0.0] * 2)[:2]

        advance_until(backend, lambda: min(updates()) > 20, "both workers train")
        version = backend.parameters("weights").version
        first, second = updates()
        os.kill(backend.process_ids()["actor-0+learner-0"], signal.SIGKILL)
        advance_until(backend, lambda: updates()[1] > second + 20, "the other one goes on")
        advance_until(backend, lambda: updates()[0] > first + 20, "the killed one is back")
        assert backend.restarts == 1
        weights = backend.parameters("weights")
        assert weights.version > version + 40
        assert np.isfinite(weights.vector).all()
        # Counts in shared memory survive a kill; those of telemetry may lack the last moment.
        assert abs(weights.version - sum(updates())) <= 4


class Uneven(gymnasium.Env):
    """Takes longer wherever the first actor runs."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        slow = multiprocessing.current_process().name.startswith("actor-0")
        self._seconds = SLOW_STEP_SECONDS if slow else 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(self._seconds)
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_one_slow_actor_stalls_all_of_a2c_and_the_waiting_is_measured():
    with running("a2c", Uneven, num_actors=2) as backend:
        advance_until(backend, lambda: (counters(backend, "updates") or [0])[0] > 8, "updates")
        slow, fast = counters(backend, "env_steps")
        slow_waits, fast_waits = counters(backend, "wait_for_update_seconds")
    assert abs(slow - fast) <= 5 * 2, "more than a trajectory apart"
    assert fast_waits > slow_waits + 0.3 * 8 * 5 * SLOW_STEP_SECONDS


def test_a_slow_worker_of_a3c_holds_up_nobody():
    with running("a3c", Uneven, num_actors=2) as backend:
        advance_until(backend, lambda: both_updated(backend, 4), "updates")
        slow, fast = counters(backend, "updates")
    assert fast > 3 * slow
