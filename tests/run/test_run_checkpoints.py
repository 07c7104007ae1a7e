# SPDX-License-Identifier: Apache-2.0
"""When a run saves itself, and what a resumed run restores."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from veldt.run.checkpoints import RunCheckpoints, newest_weights
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.counters import NodeTelemetry
from veldt.types import Parameters

GOOD = Parameters(np.zeros(3, np.float32), 7)
BROKEN = Parameters(np.array([0, np.nan, 0], np.float32), 8)


class FakeBackend:
    """One node, whose state is a single number."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def capture(self, wait_seconds: float) -> SimpleNamespace:
        self.calls["capture"] += 1
        parts = {"actor-0": {"steps": np.array(1)}, "channels": {}}
        return SimpleNamespace(ready=lambda: True, parts=lambda: parts)

    def restore(self, checkpoint: Path, generation: int) -> None:
        self.calls["generation"] = generation


def run_with(env_steps: int, returns: tuple[float, ...] = ()) -> RunTelemetry:
    telemetry, node = RunTelemetry([("actor-0", "actor")]), NodeTelemetry()
    node.counter("env_steps").set(env_steps)
    if returns:
        node.episode(np.array(returns), np.full(len(returns), 10))
    telemetry.update({"actor-0": node.snapshot()}, now=0.0)
    return telemetry


def checkpoints(directory: Path, telemetry: RunTelemetry, **every) -> tuple[RunCheckpoints, list]:
    notes: list[str] = []
    rules = {"every_seconds": None, "every_env_steps": None, **every}
    backend = FakeBackend()
    return RunCheckpoints(directory, backend, telemetry, note=notes.append, **rules), notes


def steps_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("checkpoint-*"))


def test_broken_weights_are_not_saved_while_the_run_continues(tmp_path):
    saves, notes = checkpoints(tmp_path, run_with(10), every_seconds=1.0)
    saves.save_if_due(2.0, lambda: BROKEN)
    saves.save_if_due(2.1, lambda: BROKEN)
    assert notes == ["no checkpoint was written: the weights are not finite"]
    assert saves._backend.calls["capture"] == 0
    assert steps_in(tmp_path) == []


def test_returns_and_episodes_are_restored(tmp_path):
    before = run_with(10, returns=(1.0, 2.0, 6.0))
    assert checkpoints(tmp_path, before)[0].save(GOOD) is not None
    after = run_with(10)
    checkpoints(tmp_path, after)[0].begin_from_newest()
    assert before.mean_return_100 == after.mean_return_100 == 3.0
    after.update({"actor-0": before.snapshots["actor-0"]}, now=1.0)
    assert after.episodes == 3
    assert after.mean_return_100 == 3.0  # no episode is counted twice


def test_random_streams_of_a_resumed_run_are_of_another_generation(tmp_path):
    for generation in (1, 2, 3):
        saves, _ = checkpoints(tmp_path, run_with(10 * generation))
        if generation > 1:
            saves.begin_from_newest()
        assert saves._backend.calls["generation"] == generation - 1
        assert saves.save(GOOD) is not None


@pytest.mark.parametrize(("stopped_at", "next_point"), [(100, 200), (130, 200), (199, 200)])
def test_points_stay_at_multiples_after_a_stop_between_them(tmp_path, stopped_at, next_point):
    assert checkpoints(tmp_path, run_with(stopped_at))[0].save(GOOD) is not None
    for env_steps, saved in ((next_point - 1, 0), (next_point, 1)):
        saves, _ = checkpoints(tmp_path, run_with(env_steps), every_env_steps=100)
        saves.begin_from_newest()
        saves.save_if_due(1.0, lambda: GOOD)
        assert saves._backend.calls["capture"] == saved


def test_the_version_of_sharded_weights_is_that_of_the_oldest_shard():
    boards = {
        "weights-0": Parameters(np.array([1.0], np.float32), 5),
        "weights-1": Parameters(np.array([2.0], np.float32), 4),
    }
    found = newest_weights(
        SimpleNamespace(parameters=boards.__getitem__),
        SimpleNamespace(boards=[], weights=tuple(boards)),
    )
    assert found.version == 4
    np.testing.assert_array_equal(found.vector, [1.0, 2.0])
