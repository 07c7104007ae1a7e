# SPDX-License-Identifier: Apache-2.0
"""The process that follows metrics.jsonl and sends new lines to each tracker.

A line is sent if it has more env steps than the last one sent, so the curve of a run that was
killed and resumed continues where it ended, under the same id.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from veldt.files import lock, write_atomically
from veldt.telemetry.log_files import METRICS_FILE, Guard, JsonLines
from veldt.telemetry.record import CONFIG_FILE, RESULT_FILE, STATUS_FILE
from veldt.trackers.child import STATE_FILE, read_state
from veldt.trackers.destinations import DESTINATIONS, Destination, Line, State

_POLL_SECONDS = 1.0
_RETRY_SECONDS = 30.0
_PREDECESSOR_SECONDS = 60.0
_LINES_AT_ONCE = 200


class MetricsForwarder:
    """Brings one tracker up to date; lines that it refuses are kept and sent again later."""

    def __init__(self, name: str, run_dir: Path, state: State, save: Callable[[], None]) -> None:
        self._name, self._run_dir, self._state, self._save = name, run_dir, state, save
        self._guard = Guard(report)
        self._destination: Destination | None = None
        self._next_attempt = 0.0
        self.lines: list[Line] = []
        """Not sent yet."""

    def send(self, now: float) -> None:
        if now >= self._next_attempt:
            self._next_attempt = now + _RETRY_SECONDS  # unless it succeeds
            self._guard(f"the tracker {self._name}", self._send)

    def _send(self) -> None:
        if self._destination is None:
            destination = DESTINATIONS[self._name]()
            config = json.loads((self._run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
            destination.open(self._run_dir, config, self._state)
            self._destination = destination
            self._save()
        while self.lines:
            part, reached = self.lines[:_LINES_AT_ONCE], self._state.get("env_steps", -1)
            fresh = []
            for line in part:
                if line["env_steps"] > reached:
                    reached = line["env_steps"]
                    fresh.append(line)
            if fresh:
                self._destination.send(fresh)
                self._state["env_steps"] = reached
                self._save()
            del self.lines[: len(part)]
        self._next_attempt = 0.0

    def close(self, succeeded: bool) -> None:
        self._next_attempt = 0.0
        self.send(time.monotonic())
        if self._destination is not None:
            self._guard(f"the tracker {self._name}", self._destination.close, succeeded)


def report(text: str) -> None:
    """Send the run one line."""
    print(" ".join(text.split())[:400], flush=True)


def forward(run_dir: Path, names: list[str]) -> None:
    """Send metrics until the run or its process ends."""
    parent = os.getppid()
    _wait_for_predecessor(run_dir)
    states = read_state(run_dir)

    def save() -> None:
        write_atomically(run_dir / STATE_FILE, json.dumps(states, indent=2) + "\n")

    forwarders = [
        MetricsForwarder(name, run_dir, states.setdefault(name, {}), save) for name in names
    ]
    metrics = JsonLines(run_dir / METRICS_FILE)
    is_running = True
    while is_running:
        stop_requested, _, _ = select.select([0], [], [], _POLL_SECONDS)
        is_running = not stop_requested and os.getppid() == parent
        lines, _ = metrics.new_lines()
        for forwarder in forwarders:
            forwarder.lines += lines
            if is_running:
                forwarder.send(time.monotonic())
    for forwarder in forwarders:
        forwarder.close(_has_succeeded(run_dir))


def _wait_for_predecessor(run_dir: Path) -> None:
    """Wait for the process of a killed run, which may still be sending its last lines."""
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while lock(run_dir / ".trackers.lock") is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _has_succeeded(run_dir: Path) -> bool:
    """Whether the run has ended, neither by a failure nor by an interrupt."""
    try:
        status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
        result = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return status["state"] == "ended" and result["stopped_by"] not in ("failure", "interrupt")


if __name__ == "__main__":
    # Output of the packages must not reach the run as a message.
    messages = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(messages, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    forward(Path(sys.argv[1]), sys.argv[2].split(","))
