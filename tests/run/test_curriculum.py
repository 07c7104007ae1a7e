# SPDX-License-Identifier: Apache-2.0
"""A callback changes the environments of all actors, on every backend and beyond a checkpoint."""

from __future__ import annotations

import json

import pytest

import veldt
from veldt.environments.parameters import from_vector
from veldt.run.loading import find_checkpoint

SMALL = {"num_actors": 2, "envs_per_actor": 2, "evaluation_episodes": 0, "max_seconds": 60}


class Taller(veldt.Callback):
    """Stairs of two, then of five when all actors have the first, until all have the second."""

    def __init__(self) -> None:
        self.found: object = None

    def on_start(self):
        self.found = dict(self.environment_parameters)
        if not self.found:
            self.set_environment(height=2)

    def on_progress(self, metrics):
        height = self.environment_parameters["height"]
        version = {2: 1, 5: 2}[height]
        # The mean over actors: none has a version that does not exist.
        all_have_it = metrics.get("counter/environment_version") == version
        if not all_have_it or metrics.get("info/height") != height:
            return False
        if height == 5:
            return True
        self.set_environment(height=5)


@pytest.mark.parametrize(
    "backend", ["serial", "process", pytest.param("ray", marks=pytest.mark.slow)]
)
def test_a_curriculum_reaches_every_actor_and_survives_a_checkpoint(tmp_path, backend):
    path, callback = tmp_path / "run", Taller()
    result = veldt.train(
        "impala", "veldt/Stairs-v0", [callback], backend=backend, run_dir=str(path), **SMALL
    )
    assert callback.found == {}
    assert result.stopped_by == "callback"
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    assert last["info/height"] == last["environment/height"] == 5
    assert last.keys() >= {"info/is_success", "info/episode/stairs"}
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    notes = [event["text"] for event in events if event["sort"] == "environment"]
    assert notes == ["version 1: height=2", "version 2: height=5"]

    if backend == "ray":  # a second start would cost more than it shows
        saved = find_checkpoint(path).load("channels")
        assert from_vector(saved["board.environment"]) == {"height": 5}
        assert saved["version.environment"] == 2
        return
    again = Taller()
    resumed = veldt.resume(path, callbacks=[again], max_seconds=120)
    assert again.found == {"height": 5}
    assert resumed.stopped_by == "callback"


class Fixed(veldt.Callback):
    def __init__(self, **values: object) -> None:
        self.values = values

    def on_start(self):
        self.set_environment(**self.values)


@pytest.mark.parametrize(
    ("env", "values", "line"),
    [
        ("CartPole-v1", {"height": 3}, "'CartPole-v1' takes no parameters; give it a method"),
        ("veldt/Stairs-v0", {"hight": 3}, "does not take 'hight'; did you mean height?"),
        ("veldt/Stairs-v0", {}, "also needs height"),
    ],
)
def test_what_an_environment_does_not_take_is_one_line_before_anything_starts(
    tmp_path, env, values, line
):
    with pytest.raises(veldt.CallbackFailure, match=r"Fixed\.on_start failed") as failure:
        veldt.train("impala", env, [Fixed(**values)], backend="serial", run_dir=str(tmp_path / "r"))
    assert line in str(failure.value)
    assert json.loads((tmp_path / "r" / "result.json").read_text())["env_steps"] == 0


def test_evaluations_play_what_the_run_does(tmp_path):
    callback = Fixed(height=7)
    result = veldt.train(
        "impala", "veldt/Stairs-v0", [callback], backend="serial", run_dir=str(tmp_path / "run"),
        total_env_steps=200, **SMALL | {"evaluation_episodes": 5},
    )  # fmt: skip
    assert abs(result.evaluation_return * 7 * 5 - round(result.evaluation_return * 35)) < 1e-4
    assert callback.environment_parameters == {"height": 7}
