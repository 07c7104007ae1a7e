# SPDX-License-Identifier: Apache-2.0
"""When a dead or silent process is replaced, and when a run gives up on it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from veldt.telemetry.counters import NodeSnapshot

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0
_WINDOW_SECONDS = 60.0
_LONGEST_BETWEEN_LOOKS_SECONDS = 5.0
_MOST_GAPS = 1000


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


class Attention:
    """When somebody was there to hear the nodes. A whole run may be suspended (Ctrl-Z, a scheduler
    that lends its cores to another job), and whoever watches it may be busy: that no node was heard
    of meanwhile does not mean that it hangs."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MOST_GAPS)

    def look(self) -> None:
        """Call often."""
        now = time.monotonic()
        if now - self._looked > _LONGEST_BETWEEN_LOOKS_SECONDS:
            self._gaps.append((self._looked, now))
        self._looked = now

    def missed_seconds(self, since: float) -> float:
        return sum(end - max(begin, since) for begin, end in self._gaps if end > since)


def silent_seconds(
    snapshots: list[NodeSnapshot], started: float, attention: Attention | None = None
) -> float:
    """How long the most silent of a group's nodes has not been heard of, by whoever listened."""
    now = time.monotonic()
    beats = [snapshot.counters.get("heartbeat_seconds", 0.0) for snapshot in snapshots]
    last = min((max(beat, started) for beat in beats), default=now)
    return now - last - (attention.missed_seconds(last) if attention else 0.0)
