# SPDX-License-Identifier: Apache-2.0
"""What a run prints: live, plain, JSON or nothing, and never an exception."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from veldt.options import RunOptions
from veldt.telemetry.progress import (
    LiveProgress,
    PlainProgress,
    closing_lines,
    make_progress,
    seconds_left,
)
from veldt.telemetry.result import RunResult

TITLE = "impala  CartPole-v1  process, seed 1"
GOAL = RunOptions("CartPole-v1", target_return=475.0, total_env_steps=10_000, max_seconds=60.0)


def a_result(**changes: Any) -> RunResult:
    entries: dict[str, Any] = {"env_steps": 2400, "frames": 2400, "updates": 24, "episodes": 9}
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
    fake.nodes["actor-0"].episode_info({"return/Breakout-v1": [200.0], "seconds": [1.0]})
    fake.nodes["learner-0"].counter("updates").add(24)
    fake.nodes["learner-0"].lag(np.array([1, 2, 6]))
    fake.spend("learner-0", "wait", 0.4)
    fake.update(4.0, trajectories=0.625)
    return fake


def test_plain_lines_say_everything_and_come_every_five_seconds(fake):
    stream = io.StringIO()
    progress = make_progress(TITLE, GOAL, stream)
    assert type(progress) is PlainProgress
    for elapsed in (4.0, 4.5, 8.9, 9.0, 9.1):
        progress.update(fake.run, elapsed)
    progress.note("actor-1 restarted")
    first, second, note = stream.getvalue().splitlines()
    assert first == (
        "[0:04]  return 250.0/475  Breakout-v1 200.0  env steps 2,400/10,000 (600/s)"
        "  updates 24 (6/s)  lag 3.0 (max 6)  trajectories filled 62%  actor busy 62%"
        "  learner busy 90%  time left 0:12"
    )
    assert second.startswith("[0:09]")
    assert note == "actor-1 restarted"
    assert "\x1b" not in stream.getvalue()


def test_time_left_is_the_first_budget_to_end(fake):
    def left(**budget: Any) -> float | None:
        return seconds_left(RunOptions("e", **budget), fake.run, 4.0)

    assert left() is None
    assert left(max_seconds=60.0) == 56.0
    assert left(total_env_steps=10_000) == pytest.approx((10_000 - 2400) / 600)
    assert left(total_env_steps=10_000, max_seconds=5.0) == 1.0
    assert left(total_env_steps=2000) == 0.0


def test_json_lines_are_objects_with_an_event(fake):
    stream = io.StringIO()
    progress = make_progress(TITLE, replace(GOAL, json=True), stream)
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


def test_quiet_is_silent_and_quiet_json_is_the_result_alone(fake):
    for as_json, lines in ((False, 0), (True, 1)):
        stream = io.StringIO()
        progress = make_progress(TITLE, replace(GOAL, quiet=True, json=as_json), stream)
        progress.update(fake.run, 4.0)
        progress.note("actor-1 restarted")
        progress.finish(a_result())
        assert len(stream.getvalue().splitlines()) == lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_live_display_has_every_row_is_redrawn_and_fits(fake, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    drawn = {}
    for width in (100, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        stream = Terminal()
        progress = make_progress(TITLE, GOAL, stream)
        assert type(progress) is LiveProgress
        progress.update(fake.run, 4.0)
        progress.note("actor-1 restarted")
        progress.update(fake.run, 5.0)
        progress.finish(a_result())
        frame, erased, _ = re.split(r"\x1b\[(\d+)F\x1b\[J", stream.getvalue())
        drawn[width] = re.sub(r"\x1b\[\d+m", "", frame).splitlines()
        assert int(erased) == len(drawn[width])
        assert max(map(len, drawn[width])) < width
    assert [" ".join(row.split()[:2]) for row in drawn[100]] == [
        "impala CartPole-v1", "return 250.0/475", "Breakout-v1 200.0", "env steps",
        "updates 24", "lag 3.0", "trajectories filled", "actor busy", "learner busy", "time left",
    ]  # fmt: skip
    assert drawn[100][-2].split()[2:] == ["90%", "#" * 16]
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_progress(TITLE, GOAL, Terminal())) is PlainProgress


@pytest.mark.parametrize("first", [PlainProgress, LiveProgress])
def test_a_stream_that_has_gone_never_raises(fake, first):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    progress = first(TITLE, GOAL, Gone())
    for elapsed in (4.0, 30.0):
        progress.update(fake.run, elapsed)
    progress.note("actor-1 restarted")
    progress.finish(a_result())


def test_closing_lines_tell_outcome_work_and_bottleneck():
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
        "look at it: veldt evaluate runs/1, or veldt watch runs/1",
        "use it: veldt export runs/1 --out policy.onnx,"
        " or veldt resume runs/1 --total-env-steps 4800",
        "runs/1",
    ]
    assert closing_lines(a_result())[0] == "env step budget used after 12.3 s: mean return -"
    slow = closing_lines(a_result(start_seconds=6.1))[0]
    assert slow.startswith("env step budget used after 12.3 s (6.1 s of them the start):")
    stopped = closing_lines(a_result(stopped_by="interrupt", run_dir="my runs/1"))
    assert "continue it: veldt resume 'my runs/1'" in stopped


def test_a_result_is_read_as_it_was_written_also_by_a_later_version(tmp_path):
    path, result = tmp_path / "result.json", a_result(mean_return_100=476.25, dropped={"stale": 2})
    result.save(path)
    assert RunResult.load(path) == result
    path.write_text(json.dumps(json.loads(path.read_text()) | {"from_the_future": 1}))
    assert RunResult.load(path) == result


def test_a_run_that_learned_nothing_says_so_in_red():
    nothing = a_result(updates=0, episodes=0)
    found = [line.partition(":")[0] for line in nothing.problems()]
    assert found == ["0 updates", "no episode ended"]
    assert a_result(env_steps=0, updates=0).problems()[0].startswith("0 env steps")
    stream = io.StringIO()
    LiveProgress(TITLE, GOAL, stream).finish(nothing)
    assert "\x1b[31m0 updates" in stream.getvalue()
