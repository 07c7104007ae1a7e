# SPDX-License-Identifier: Apache-2.0
"""The driver's side of one node process on Ray: where it is placed, and the calls under way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from veldt.backends.base import NodeFailure
from veldt.backends.ray.cluster import ray
from veldt.backends.ray.messages import Handle, Report
from veldt.topology import Group

ANSWER_SECONDS = 10.0
_REPORT_INTERVAL_SECONDS = 0.1
_STACK_SECONDS = 1.0


@dataclass
class Host:
    """One process group. `running` is the call that returns when the group's roles end."""

    group: Group
    incarnation: int
    handle: Handle
    process_id: int = 0
    running: Any = None
    report: Any = None
    asked_at: float = 0.0
    silent: float = 0.0
    """Seconds without a heartbeat, by the process's own clock at its last report."""
    placed_at: float = field(default_factory=time.monotonic)
    is_overdue: bool = False
    """It has not started for so long that this was noted."""

    def died(self, error: Exception) -> NodeFailure:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return NodeFailure(self.group.name, f"its process ended: {first}", str(error))

    def answer(self, call: Any, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return ray.get(call, timeout=seconds)
        except ray.exceptions.RayError as error:
            raise self.died(error) from error

    def ask_for_report(self) -> None:
        """At most one question at a time, and not too often."""
        now = time.monotonic()
        if self.report is None and now - self.asked_at >= _REPORT_INTERVAL_SECONDS:
            self.report, self.asked_at = self.handle.report.remote(), now

    def silent_seconds(self) -> float:
        """How long the roles, or the whole process, have not been heard of."""
        unanswered = time.monotonic() - self.asked_at if self.report is not None else 0.0
        return max(self.silent, unanswered)

    def kill_silent(self) -> str:
        """End a process that hangs; says how long it did, and where."""
        stack = answers([self.handle.stack.remote()], _STACK_SECONDS)
        text = stack[0] if stack else "(no Python stack: the process does not answer)"
        note = f"{self.group.name} was silent for {self.silent_seconds():.0f} s\n{text}"
        ray.kill(self.handle)
        self.report, self.silent, self.asked_at = None, 0.0, time.monotonic()
        return note


def answers(calls: list[Any], seconds: float = ANSWER_SECONDS) -> list[Any]:
    """What those calls returned that succeeded in time."""
    ready, _ = ray.wait(calls, num_returns=len(calls), timeout=seconds) if calls else ([], [])
    found = []
    for call in ready:
        try:
            found.append(ray.get(call))
        except ray.exceptions.RayError:
            continue  # a dead process; its `running` says so too, and why
    return found


def reports(hosts: list[Host], seconds: float = 0.0) -> list[Report]:
    """The reports that have been asked for and are there, or come within `seconds`."""
    asked = {host.report: host for host in hosts if host.report is not None}
    if not asked:
        return []
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    found = []
    for call in ready:
        host = asked[call]
        host.report = None
        for report in answers([call]):
            host.silent = report.silent_seconds
            found.append(report)
    return found
