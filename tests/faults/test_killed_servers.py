# SPDX-License-Identifier: Apache-2.0
"""Learners, replays and inference servers of real runs that are killed: they come back from their
checkpoint while the others wait, and go on where they were."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_killed_processes import advance_until, counter, running

from veldt.checkpoints.store import CheckpointStore
from veldt.run.checkpoints import RunCheckpoints
from veldt.telemetry.aggregate import RunTelemetry

pytestmark = pytest.mark.slow

REPLAY = {"min_replay_transitions": 200, "batch_size": 16, "env_steps_per_update": 8.0}
KILLS = 3
REPLAY_KILLS = int(os.environ.get("VELDT_REPLAY_KILLS", 1))  # 50 at night
PREFETCHED = 6  # batches that may have been under way when the replay died


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


def group_of(backend, node: str) -> str:
    return next(name for name in backend.process_ids() if node in name.split("+"))


def kill(backend, node: str) -> None:
    """Kill the process of a node."""
    backend._policies.clear()  # each kill is measured by itself, without a backoff
    os.kill(backend.process_ids()[group_of(backend, node)], signal.SIGKILL)


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
    """How far from what the limiter is to keep, relative to all that was drawn."""
    ratio = REPLAY["batch_size"] / REPLAY["env_steps_per_update"]
    return abs(ratio * (inserted - REPLAY["min_replay_transitions"]) - sampled) / sampled


@pytest.mark.parametrize(
    ("architecture", "victim", "own"),
    [
        ("seed_rl", "inference-0", {"groups_per_actor": 2}),
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
        assert learned <= stepped, "a transition was learned from twice"
