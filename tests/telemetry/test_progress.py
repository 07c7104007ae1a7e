# SPDX-License-Identifier: Apache-2.0
"""What a run prints: live, plain, JSON or nothing, and never an exception."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from veldt.telemetry.live import LiveProgress
from veldt.telemetry.progress import (
    JsonProgress,
    JsonResult,
    PlainProgress,
    Progress,
    RunGoal,
    closing_lines,
    make_progress,
)
from veldt.telemetry.result import RunResult

GOAL = RunGoal("impala", "CartPole-v1", "process", 1, 475.0, 10_000, 60.0)


def a_result(**changes: Any) -> RunResult:
    entries: dict[str, Any] = {"env_steps": 2400, "frames": 2400, "updates": 24}
    entries |= {"wall_seconds": 12.3, "stopped_by": "env_steps", "run_dir": "runs/1"}
    return RunResult("impala", "CartPole-v1", "process", 1, **(entries | changes))


@pytest.fixture
def fake(fake_run: Callable[..., Any]) -> Any:
    """A run of two actors and a learner after four seconds."""
    fake = fake_run("actor-0", "actor-1", "learner-0")
    fake.update(trajectories=0.0)
    for name, waited in (("actor-0", 1.0), ("actor-1", 2.0)):
        fake.nodes[name].counter("env_steps").add(1200)
        fake.spend(name, "wait", waited)
        fake.finish_episodes(name, 200.0, 300.0)
    fake.nodes["learner-0"].counter("updates").add(24)
    fake.nodes["learner-0"].lag(np.array([1, 2, 6]))
    fake.spend("learner-0", "wait", 0.4)
    fake.update(4.0, trajectories=0.625)
    return fake


def test_plain_lines_say_everything_and_come_every_five_seconds(fake: Any) -> None:
    stream = io.StringIO()
    with make_progress(GOAL, stream=stream) as progress:
        assert type(progress) is PlainProgress
        for elapsed in (4.0, 4.5, 8.9, 9.0, 9.1):
            progress.update(fake.run, elapsed)
        progress.note("actor-1 restarted")
    first, second, note = stream.getvalue().splitlines()
    assert first == (
        "[0:04]  return 250.0/475  2,400 env steps (600/s)  24 updates (6/s)  lag 3.0 (max 6)"
        "  trajectories 62% full  busy actor 62%, learner 90%  0:12 left"
    )
    assert second.startswith("[0:09]")
    assert note == "actor-1 restarted"
    assert "\x1b" not in stream.getvalue()


def test_time_left_is_the_first_budget_to_end(fake: Any) -> None:
    def left(**budget: Any) -> float | None:
        return RunGoal("a", "e", "b", 1, **budget).seconds_left(fake.run, 4.0)

    assert left() is None
    assert left(max_seconds=60.0) == 56.0
    assert left(total_env_steps=10_000) == pytest.approx((10_000 - 2400) / 600)
    assert left(total_env_steps=10_000, max_seconds=5.0) == 1.0
    assert left(total_env_steps=2000) == 0.0


def test_json_lines_are_objects_with_an_event(fake: Any) -> None:
    stream = io.StringIO()
    progress = make_progress(GOAL, as_json=True, stream=stream)
    assert type(progress) is JsonProgress
    progress.update(fake.run, 4.0)
    progress.note("actor-1 restarted")
    progress.finish(a_result(mean_return_100=float("nan")))
    events = [
        json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()
    ]
    assert [event["event"] for event in events] == ["progress", "note", "result"]
    assert events[0]["env_steps"] == 2400
    assert events[0]["rate/env_steps_per_second"] == 600.0
    assert events[0]["seconds_left"] == pytest.approx(12.667, abs=1e-3)
    assert events[2]["mean_return_100"] is None


def test_quiet_is_silent_and_quiet_json_is_the_result_alone(fake: Any) -> None:
    for as_json, kind, lines in ((False, Progress, 0), (True, JsonResult, 1)):
        stream = io.StringIO()
        progress = make_progress(GOAL, quiet=True, as_json=as_json, stream=stream)
        assert type(progress) is kind
        progress.update(fake.run, 4.0)
        progress.note("actor-1 restarted")
        progress.finish(a_result())
        assert len(stream.getvalue().splitlines()) == lines


@pytest.mark.parametrize("width", [100, 60])
def test_a_live_frame_has_every_row_and_fits(fake: Any, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, _environ={})
    progress = LiveProgress(GOAL, io.StringIO(), console)
    with console.capture() as capture:
        console.print(progress.frame(fake.run, 4.0))
    rows = [line.rstrip() for line in _without_escapes(capture.get()).splitlines()]
    assert all(len(row) <= width for row in rows)
    if width < 80:
        return
    labels = [" ".join(row.split()[:2]) for row in rows if row]
    assert labels == [
        "impala CartPole-v1", "return 250.0", "env steps", "updates 24", "policy lag",
        "queue 62%", "actor x2", "learner 90%",
    ]  # fmt: skip
    assert "0:04, 0:12 left" in rows[1]
    assert "busy, 50% to 75%" in rows[-2]
    assert "target 475" in next(row for row in rows if "return" in row)


def _without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("first", [PlainProgress, LiveProgress])
def test_a_stream_that_has_gone_never_raises(fake: Any, first: type[Progress]) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    progress = first(GOAL, Gone())
    with progress:
        for elapsed in (4.0, 30.0):
            progress.update(fake.run, elapsed)
        progress.note("actor-1 restarted")
        progress.finish(a_result())


def test_closing_lines_tell_outcome_work_and_bottleneck() -> None:
    lines = closing_lines(
        a_result(
            stopped_by="target", reached_target=True, seconds_to_target=10.0, mean_return_100=480.0,
            evaluation_return=499.5, env_steps_per_second=1234.5, restarts=2, frames=9600,
            dropped={"stale": 3, "outlier": 0}, bottleneck="learner 93% busy: wait",
        )
    )  # fmt: skip
    assert lines == [
        "target reached after 10.0 s: mean return 480.0, evaluation 499.5",
        "2,400 env steps (9,600 frames), 1,234/s, 24 updates, policy lag mean 0.00 max 0",
        "restarts: 2, 3 dropped (stale)",
        "learner 93% busy: wait",
        "runs/1",
    ]
    assert closing_lines(a_result())[0] == "env step budget used after 12.3 s: mean return -"


PROGRAM = """
import sys
from veldt.telemetry.progress import RunGoal, make_progress
progress = make_progress(RunGoal("impala", "CartPole-v1", "process", 1))
print(type(progress).__name__, "rich" in sys.modules)
"""


def run_program(**environment: str) -> str:
    """Its output to a terminal."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", PROGRAM], env=variables, stdout=theirs, check=True)
        return os.read(ours, 1000).decode().strip()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_the_display_follows_the_terminal_and_rich_is_imported_only_for_it() -> None:
    assert run_program(TERM="xterm") == "LiveProgress True"
    assert run_program(TERM="dumb") == "PlainProgress False"
