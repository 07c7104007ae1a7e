# SPDX-License-Identifier: Apache-2.0
"""The process that follows metrics.jsonl and sends what is new to each tracker.

A line is sent if it is of more env steps than the last one sent, so that the curve of a run that
was killed and resumed goes on where it ended, under the same id.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from veldt.files import lock, write_atomically
from veldt.telemetry.log_files import METRICS_FILE, Guard, JsonLines
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE, STATUS_FILE
from veldt.trackers.child import STATE_FILE, read_state

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 30.0
_PREDECESSOR_SECONDS = 60.0
_LINES_AT_ONCE = 200

Line = dict[str, Any]
State = dict[str, Any]
"""Of one tracker: its `id`, its last `env_steps`, and what else it needs to be found again."""


class Destination(Protocol):
    """One run of one tracker."""

    def open(self, run_dir: Path, config: dict[str, Any], state: State) -> None:
        """Begin, or go on with the run that `state` names; fills `state` otherwise."""

    def send(self, lines: list[Line]) -> None: ...

    def close(self, succeeded: bool) -> None: ...


def destination_of(name: str) -> Destination:
    if name == "wandb":
        from veldt.trackers.wandb_run import WandbRun

        return WandbRun()
    from veldt.trackers.mlflow_run import MlflowRun

    return MlflowRun()


class Follower:
    """Brings one tracker up to date. What it does not take is kept, and offered again later."""

    def __init__(self, name: str, run_dir: Path, state: State, save: Callable[[], None]) -> None:
        self._name, self._run_dir, self._state, self._save = name, run_dir, state, save
        self._guard = Guard(say)
        self._lines: list[Line] = []
        self._destination: Destination | None = None
        self._next_attempt = 0.0

    def add(self, lines: list[Line]) -> None:
        self._lines += lines

    def advance(self, now: float) -> None:
        if now >= self._next_attempt:
            self._next_attempt = now + _RETRY_SECONDS  # unless it goes well
            self._guard(f"the tracker {self._name}", self._advance)

    def _advance(self) -> None:
        if self._destination is None:
            destination = destination_of(self._name)
            config = json.loads((self._run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
            destination.open(self._run_dir, config, self._state)
            self._destination = destination
            self._save()
        while self._lines:
            part, reached = self._lines[:_LINES_AT_ONCE], self._state.get("env_steps", -1)
            fresh = []
            for line in part:
                if line["env_steps"] > reached:
                    reached = line["env_steps"]
                    fresh.append(line)
            if fresh:
                self._destination.send(fresh)
                self._state["env_steps"] = reached
                self._save()
            del self._lines[: len(part)]
        self._next_attempt = 0.0

    def close(self, succeeded: bool) -> None:
        self._next_attempt = 0.0
        self.advance(time.monotonic())
        if self._destination is not None:
            self._guard(f"the tracker {self._name}", self._destination.close, succeeded)


def say(text: str) -> None:
    """To the run, in one line."""
    print(" ".join(text.split())[:400], flush=True)


def follow(run_dir: Path, names: list[str]) -> None:
    """Send until the run has ended, or its process has."""
    parent = os.getppid()
    _wait_for_predecessor(run_dir)
    states = read_state(run_dir)

    def save() -> None:
        write_atomically(run_dir / STATE_FILE, json.dumps(states, indent=2) + "\n")

    followers = [Follower(name, run_dir, states.setdefault(name, {}), save) for name in names]
    metrics = JsonLines(run_dir / METRICS_FILE)
    goes_on = True
    while goes_on:
        goes_on = not _is_told_to_end() and os.getppid() == parent
        lines, _ = metrics.new_lines()
        for follower in followers:
            follower.add(lines)
            if goes_on:
                follower.advance(time.monotonic())
    for follower in followers:
        follower.close(_has_succeeded(run_dir))


def _wait_for_predecessor(run_dir: Path) -> None:
    """The process of a run that was killed may still be sending the end of it."""
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while lock(run_dir / ".trackers.lock") is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _is_told_to_end() -> bool:
    readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
    return bool(readable)  # a word, or the end of the other side


def _has_succeeded(run_dir: Path) -> bool:
    """Whether the run has come to an end of its own, and not to a failure."""
    try:
        status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        result = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return status["state"] == "ended" and result["stopped_by"] not in ("failure", "interrupt")


if __name__ == "__main__":
    # What packages print must not look like a word of ours.
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(own, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    follow(Path(sys.argv[1]), sys.argv[2].split(","))
