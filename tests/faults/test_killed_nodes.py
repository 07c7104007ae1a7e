# SPDX-License-Identifier: Apache-2.0
"""Nodes of real runs that are killed or stopped: nothing is torn, late or learned from twice, and
learners, replays and servers continue from their checkpoint while the others wait."""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from driving import advance_until

from veldt.backends.base import BackendOptions
from veldt.backends.process.backend import ProcessBackend
from veldt.backends.process.forkserver import warm_up
from veldt.checkpoints.store import CheckpointStore
from veldt.options import RunOptions
from veldt.run.checkpoints import RunCheckpoints
from veldt.run.plan import make_plan
from veldt.telemetry.aggregate import RunTelemetry

pytestmark = pytest.mark.slow

ACTOR_KILLS = int(os.environ.get("VELDT_ACTOR_KILLS", 20))  # 1,000 at night
REPLAY_KILLS = int(os.environ.get("VELDT_REPLAY_KILLS", 1))  # 50 at night
KILLS = 3
PREFETCHED = 6  # batches that may have been in flight when the replay died
REPLAY = {"min_replay_transitions": 200, "batch_size": 16, "env_steps_per_update": 8.0}


@contextmanager
def running(num_actors, architecture="impala", own=None, recurrent="none", run_dir=None, **watched):
    """A run over processes, with a checksum in every slot."""
    options = RunOptions(
        "CartPole-v1", num_actors=num_actors, envs_per_actor=2, recurrent=recurrent
    )
    warm_up()
    topology = make_plan(architecture, options, {"trajectory_steps": 5, **(own or {})}).topology
    backend = ProcessBackend(topology, seed=1, options=BackendOptions(verify=True, **watched))
    backend.run_dir = run_dir
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()


def counter(backend, node, name):
    names = [each.name for each in backend._topology.nodes]
    return backend.snapshots()[names.index(node)].counters.get(name, 0.0)


def kill(backend, node: str) -> None:
    """Kill the process of a node."""
    backend._policies.clear()  # each kill is measured by itself, without a backoff
    groups = backend.process_ids()
    os.kill(next(groups[name] for name in groups if node in name.split("+")), signal.SIGKILL)


class Saving:
    """Checkpoints of a backend, as a run makes them."""

    def __init__(self, backend, directory: Path) -> None:
        self.backend, self.notes = backend, []
        self.names = [node.name for node in backend._topology.nodes]
        self.telemetry = RunTelemetry([(node.name, node.kind) for node in backend._topology.nodes])
        self.store = CheckpointStore(directory / "checkpoints")
        self._checkpoints = RunCheckpoints(
            directory / "checkpoints", backend, self.telemetry,
            every_seconds=None, every_env_steps=None, note=self.notes.append,
        )  # fmt: skip

    def save(self):
        """A new checkpoint, opened."""
        snapshots = dict(zip(self.names, self.backend.snapshots(), strict=True))
        self.telemetry.update(snapshots, now=time.monotonic())
        path = self._checkpoints.save(self.backend.parameters("weights"))
        assert path is not None, self.notes
        return self.store.newest()


def test_kills_of_actors_while_they_write_tear_nothing():
    """The learner raises, which would end the run, when a slot does not match its checksum."""
    draw, actors = random.Random(3), [f"actor-{index}" for index in range(4)]
    with running(num_actors=4) as backend:

        def delivered(actor: str) -> float:
            return counter(backend, actor, "trajectories")

        def updates() -> float:
            return counter(backend, "learner-0", "updates")

        advance_until(backend, lambda: min(map(delivered, actors)) > 0, "data of all")
        for number in range(ACTOR_KILLS):
            victim = actors[number % 4]
            time.sleep(0.01 * draw.random())
            kill(backend, victim)
            before = delivered(victim)
            advance_until(
                backend, lambda v=victim, b=before: delivered(v) > b + 1, f"data after {number}"
            )
        before = updates()
        advance_until(backend, lambda: updates() > before + 20, "learning")
        assert backend.restarts == ACTOR_KILLS
        stepped = sum(counter(backend, actor, "env_steps") for actor in actors)
        assert counter(backend, "learner-0", "trained_env_steps") <= stepped


@pytest.mark.parametrize("architecture", ["ppo", "sebulba"])
def test_those_who_keep_a_pace_wait_for_the_successor_of_any_node(architecture):
    """What a learner or an actor had when it died is collected or learned from again: without it
    the others would wait for ever."""
    draw = random.Random(4)
    with running(2, architecture) as backend:
        nodes = sorted(node.name for node in backend._topology.nodes)
        for number in range(3 * len(nodes)):
            before = backend.parameters("weights").version
            advance_until(
                backend,
                lambda b=before: backend.parameters("weights").version > b + 5,
                f"updates after {number} deaths",
            )
            time.sleep(0.02 * draw.random())
            kill(backend, nodes[number % len(nodes)])
        assert backend.restarts >= 3 * len(nodes) - 1


def test_a_killed_parameter_server_goes_on_from_what_it_had_published():
    own = {"num_shards": 2, "min_replay_transitions": 100, "batch_size": 16}
    with running(1, "gorila", own) as backend:
        boards = backend._topology.weights

        def versions() -> list[int]:
            return [backend.parameters(board).version for board in boards]

        advance_until(backend, lambda: min(versions()) > 20, "updates of both shards")
        before = versions()
        kill(backend, "parameter_server-1")
        seen = []

        def both_go_on() -> bool:
            seen.append(versions()[1])
            return min(versions()) > max(before) + 50

        advance_until(backend, both_go_on, "more updates of both")
        assert backend.restarts == 1
        assert seen == sorted(seen), "a version went back"


@pytest.mark.parametrize("architecture", ["impala", "dqn", "apex"])
def test_a_killed_learner_goes_on_from_its_checkpoint(architecture, tmp_path):
    """Every other kill strikes while a checkpoint is being made."""
    own = REPLAY if architecture != "impala" else {}
    with running(1 if architecture == "dqn" else 2, architecture, own, run_dir=tmp_path) as backend:
        saving = Saving(backend, tmp_path)

        def updates() -> float:
            return counter(backend, "learner-0", "updates")

        advance_until(backend, lambda: updates() > 20, "learning")
        saving.save()
        for number in range(KILLS):
            before, version = updates(), backend.parameters("weights").version
            if number % 2:
                late = threading.Timer(0.005 * number, kill, (backend, "learner-0"))
                late.start()
                saved = saving.save()
                late.join()
                assert saved.meta["version"] >= version - 1
            else:
                kill(backend, "learner-0")
            advance_until(
                backend,
                lambda n=number, u=before: backend.restarts == n + 1 and updates() > u + 20,
                "updates of a successor",
            )
            assert backend.parameters("weights").version > version, "a version went back"
        assert np.isfinite(backend.parameters("weights").vector).all()
        newest = saving.save()
        assert int(newest.load("learner-0")["role.version"]) >= newest.meta["version"] - 1
        assert saving.store.problems == []


def test_a_killed_replay_has_all_that_was_flushed_and_keeps_its_ratio(tmp_path):
    own = {**REPLAY, "replay_transitions": 5000}
    with running(2, "apex", own, run_dir=tmp_path) as backend:
        saving = Saving(backend, tmp_path)

        def items() -> float:
            return counter(backend, "replay-0", "replay.items")

        def batches() -> float:
            return counter(backend, "learner-0", "updates")

        advance_until(backend, lambda: items() > 1500, "a replay in use")
        errors = []
        for number in range(REPLAY_KILLS):
            kept = saving.save().load("replay-0")["role.limiter.counts"]
            drawn = batches()
            advance_until(backend, lambda d=drawn: batches() > d + 20, "work after the flush")
            drawn = batches()
            kill(backend, "replay-0")
            advance_until(backend, lambda n=number: backend.restarts == n + 1, "a successor")
            advance_until(
                backend, lambda d=drawn: batches() > d + PREFETCHED, "batches of the successor"
            )
            advance_until(backend, lambda d=drawn: batches() > d + 150, "steady work")
            after = saving.save().load("replay-0")["role.limiter.counts"]
            assert (after > kept).all(), "it forgot what was flushed"
            errors.append(max(ratio_error(*kept), ratio_error(*after)))
        assert max(errors) < 0.05


def ratio_error(inserted: int, sampled: int) -> float:
    """Deviation from the ratio that the limiter keeps, relative to all that was drawn."""
    ratio = REPLAY["batch_size"] / REPLAY["env_steps_per_update"]
    return abs(ratio * (inserted - REPLAY["min_replay_transitions"]) - sampled) / sampled


@pytest.mark.parametrize(
    ("architecture", "victim", "own"),
    [
        ("seed_rl", "inference-0", {"sampling_options": {"groups_per_actor": 2}}),
        ("sample_factory", "policy_worker-0", {"batch_rows": 256}),
        ("ga3c", "predictor-0", {}),
    ],
)
def test_a_killed_inference_server_leaves_no_group_waiting(architecture, victim, own):
    """Each group of environments must go on: one lost question would stop its group for ever."""
    recurrent = "lstm" if architecture == "seed_rl" else "none"
    with running(2, architecture, own, recurrent=recurrent) as backend:
        actors = [n.name for n in backend._topology.nodes if n.kind in ("actor", "agent")][:2]
        learners = [n.name for n in backend._topology.nodes if n.kind in ("learner", "trainer")]

        def steps() -> list[float]:
            return [counter(backend, actor, "env_steps") for actor in actors]

        def trained() -> float:
            return sum(counter(backend, learner, "trained_env_steps") for learner in learners)

        advance_until(backend, lambda: trained() > 200, "learning")
        for number in range(KILLS):
            kill(backend, victim)
            before, learned = steps(), trained()
            advance_until(
                backend,
                lambda n=number, b=before, t=learned: (
                    backend.restarts == n + 1
                    and min(np.subtract(steps(), b)) > 100
                    and trained() > t + 100
                ),
                f"steps of every actor after kill {number}",
            )
        learned = trained()  # before the steps are read: both grow
        stepped = sum(counter(backend, node.name, "env_steps") for node in backend._topology.nodes)
        # ga3c's trainers die with the predictor. One that has counted a batch and not yet released
        # it leaves the batch to its successor: 5 steps of 2 environments.
        again = KILLS * len(learners) * 10 if architecture == "ga3c" else 0
        assert learned <= stepped + again, "transitions were learned from twice"
