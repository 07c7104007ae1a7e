# SPDX-License-Identifier: Apache-2.0
"""When a dead or silent process is replaced, and when a run gives up on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from veldt.telemetry.counters import NodeSnapshot

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0
_WINDOW_SECONDS = 60.0


@dataclass
class RestartPolicy:
    """A restart budget per window and a delay that doubles while a group keeps dying."""

    restarts_per_minute: int = 20
    _times: list[float] = field(default_factory=list)

    def next_delay(self) -> float | None:
        """Seconds until the group may start again; None when it has died too often."""
        now = time.monotonic()
        self._times = [then for then in self._times if now - then < _WINDOW_SECONDS]
        self._times.append(now)
        recent = sum(now - then < _LONGEST_DELAY_SECONDS for then in self._times) - 1
        if len(self._times) > self.restarts_per_minute:
            return None
        if not recent:
            return 0.0
        return min(_FIRST_DELAY_SECONDS * 2 ** (recent - 1), _LONGEST_DELAY_SECONDS)


def silent_seconds(snapshots: list[NodeSnapshot], started: float) -> float:
    """How long the most silent of a group's nodes has not been heard of."""
    now = time.monotonic()
    beats = [snapshot.counters.get("heartbeat_seconds", 0.0) for snapshot in snapshots]
    return max((now - max(beat, started) for beat in beats), default=0.0)
