# SPDX-License-Identifier: Apache-2.0
"""Which processes of an elastic run are there, and what there is to say about it."""

from __future__ import annotations

import time

from veldt.backends.elastic import ActorCounts, Elastic
from veldt.backends.ray.host import Host

_SAID_SECONDS = 2.0  # many come or go at a time, with a machine
_ROOM_SECONDS = 10.0  # a process takes a moment to start where there is room


class Membership:
    """The processes that may come and go. Nobody runs before `least` of them are ready."""

    def __init__(self, elastic: Elastic | None, notes: list[str]) -> None:
        self._elastic = elastic or Elastic(frozenset(), 0)
        self._notes = notes
        self._ready: list[Host] = []
        self._has_begun = elastic is None
        self.counts = ActorCounts()
        self._said: tuple[int, int] | None = None
        self._said_at = time.monotonic()

    def __contains__(self, group: str) -> bool:
        return group in self._elastic.groups

    def ready(self, host: Host) -> list[Host]:
        """Who may run now that `host` is ready: all who wait, once they are enough."""
        self._ready.append(host)
        if not self._has_begun and len(self._ready) < self._elastic.least:
            return []
        ready, self._ready = self._ready, []
        for _ in ready:
            self.counts.joined(is_late=self._has_begun)
        self._has_begun = True
        return ready

    def waiting(self) -> list[Host]:
        """Processes that are there but do not run yet."""
        return self._ready

    def left(self) -> None:
        self.counts.left()

    def say(self) -> None:
        """Note from time to time how many there are, where that has changed."""
        state, now = (len(self._ready), self.counts.now), time.monotonic()
        patience = _SAID_SECONDS if self._has_begun else _ROOM_SECONDS
        if not self._elastic.groups or state == self._said or now - self._said_at < patience:
            return
        self._said, self._said_at = state, now
        self._notes.append(self._text())

    def _text(self) -> str:
        elastic, there = self._elastic, self.counts.now
        if not self._has_begun:
            return (
                f"{len(self._ready)} of at least {elastic.least} actors have room in the cluster;"
                " the run waits for the others, a CPU each"
            )
        text = f"{there} of at most {len(elastic.groups)} actors"
        if there < elastic.needed:
            text += f"; the run waits until the cluster has room for {elastic.needed}, a CPU each"
        return text
