# SPDX-License-Identifier: Apache-2.0
"""Actors of a real run that are killed or stopped: nothing torn, nothing late, all come back."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import veldt
from veldt.backends.base import BackendOptions
from veldt.backends.process.backend import ProcessBackend
from veldt.backends.process.forkserver import warm_up
from veldt.options import RunOptions
from veldt.run.plan import make_plan

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60.0
KILLS = int(os.environ.get("VELDT_ACTOR_KILLS", 20))  # 1,000 at night
ROOT = str(Path(veldt.__file__).parent.parent)


@contextmanager
def running(
    num_actors: int,
    architecture: str = "impala",
    own=None,
    recurrent="none",
    run_dir=None,
    **settings,
):
    """A run over processes, every hand-over with a checksum."""
    options = RunOptions(
        "CartPole-v1", num_actors=num_actors, envs_per_actor=2, recurrent=recurrent
    )
    warm_up()
    topology = make_plan(architecture, options, {"trajectory_steps": 5, **(own or {})}).topology
    backend = ProcessBackend(topology, seed=1, options=BackendOptions(verify=True, **settings))
    backend.run_dir = run_dir
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()


def advance_until(backend, condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        backend.advance(0.02)


def counter(backend, node, name):
    names = [each.name for each in backend._topology.nodes]
    return backend.snapshots()[names.index(node)].counters.get(name, 0.0)


def test_twenty_kills_in_the_midst_of_writing_tear_nothing():
    """The learner raises, which would end the run, when a slot does not match its checksum."""
    draw, actors = random.Random(3), [f"actor-{index}" for index in range(4)]
    with running(num_actors=4) as backend:

        def delivered(actor: str) -> float:
            return counter(backend, actor, "trajectories")

        for actor in actors:
            advance_until(backend, lambda actor=actor: delivered(actor) > 0, f"data of {actor}")
        for kill in range(KILLS):
            victim = actors[kill % 4]
            backend._policies.clear()  # each kill is measured by itself, without a backoff
            time.sleep(0.01 * draw.random())
            os.kill(backend.process_ids()[victim], signal.SIGKILL)
            before = delivered(victim)
            advance_until(
                backend,
                lambda victim=victim, before=before: delivered(victim) > before + 1,
                f"data of {victim} after kill {kill}",
            )
        updates = counter(backend, "learner-0", "updates")
        advance_until(
            backend, lambda: counter(backend, "learner-0", "updates") > updates + 20, "learning"
        )
        assert backend.restarts == KILLS
        stepped = sum(counter(backend, actor, "env_steps") for actor in actors)
        trained = counter(backend, "learner-0", "trained_env_steps")
        assert trained <= stepped


HANG_SECONDS = 6.0


def test_a_stopped_actor_is_found_and_replaced_while_the_others_go_on():
    with running(num_actors=2, hang_seconds=HANG_SECONDS) as backend:
        for actor in ("actor-0", "actor-1"):
            advance_until(
                backend, lambda actor=actor: counter(backend, actor, "trajectories") > 0, actor
            )
        stopped = psutil.Process(backend.process_ids()["actor-0"])
        stopped.suspend()
        before = counter(backend, "actor-0", "trajectories")
        others = counter(backend, "actor-1", "trajectories")
        advance_until(backend, lambda: backend.restarts == 1, "its detection")
        advance_until(
            backend, lambda: counter(backend, "actor-0", "trajectories") > before + 1, "successor"
        )
        assert backend.restarts == 1
        assert any(note.startswith("actor-0 was silent for") for note in backend.notes)
        assert counter(backend, "actor-1", "trajectories") > others
        assert not is_alive(stopped), "it can write nothing any more"


def test_a_killed_parameter_server_goes_on_from_what_it_had_published():
    own = {"num_shards": 2, "min_replay_transitions": 100, "batch_size": 16}
    with running(1, "gorila", own) as backend:
        boards = backend._topology.weights

        def versions() -> list[int]:
            return [backend.parameters(board).version for board in boards]

        advance_until(backend, lambda: min(versions()) > 20, "updates of both shards")
        before = versions()
        os.kill(backend.process_ids()["parameter_server-1"], signal.SIGKILL)
        seen = []

        def both_go_on() -> bool:
            seen.append(versions()[1])
            return min(versions()) > max(before) + 50

        advance_until(backend, both_go_on, "more updates of both")
        assert backend.restarts == 1
        assert seen == sorted(seen), "a version went back"


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
