# SPDX-License-Identifier: Apache-2.0
"""Notices actors that new weights do not reach, from the versions they say they acted with.

Only what happens between two trajectories of one actor is compared, so that neither long
trajectories nor a learner that pauses look like lost weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from veldt.telemetry.counters import NodeSnapshot
from veldt.topology import Topology
from veldt.types import ORDERS

_STUCK_TRAJECTORIES, _STUCK_UPDATES = 30, 100  # some actors refresh every few trajectories only
_WINDOW = 30
_SHORTEST_SECONDS = 10.0


@dataclass(frozen=True)
class _Sight:
    """One actor at a moment when it had handed over something new."""

    now: float
    trajectories: float
    version: float
    updates: float

    @property
    def lag(self) -> float:
        """Up to a constant: a resumed run counts versions from where it began."""
        return self.updates - self.version


@dataclass
class _Watch:
    sights: deque[_Sight] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    has_rung: bool = False


def actors_with_weights(topology: Topology) -> list[str]:
    """Actors that know which version they act with; over a stream only the server knows. Several
    policies have versions of their own, which the sum of all updates cannot be compared with."""
    if any(board.spec.name == ORDERS for board in topology.boards):
        return []
    return [node.name for node in topology.nodes if node.role.knows_its_version()]


class WeightsAlarm:
    """Rings once per actor: when its weights stay the same, or only grow older, while updates are
    made and it goes on delivering."""

    def __init__(self, actors: Iterable[str]) -> None:
        self._watches = {name: _Watch() for name in actors}

    def look(self, snapshots: Mapping[str, NodeSnapshot], updates: float, now: float) -> list[str]:
        """What there is to say about the actors, given the snapshots and updates made so far."""
        texts = []
        for name, watch in self._watches.items():
            counters = snapshots[name].counters if name in snapshots else {}
            trajectories = counters.get("trajectories", 0.0)
            sights = watch.sights
            if watch.has_rung or (sights and trajectories == sights[-1].trajectories):
                continue
            sights.append(_Sight(now, trajectories, counters.get("acting_version", 0.0), updates))
            trouble = _trouble(sights)
            if trouble:
                watch.has_rung = True
                texts.append(f"{name} {trouble}; do new weights reach it?")
        return texts


def _trouble(sights: deque[_Sight]) -> str | None:
    last = sights[-1]
    same = next(sight for sight in sights if sight.version == last.version)
    stuck = (
        last.trajectories - same.trajectories >= _STUCK_TRAJECTORIES
        and last.updates - same.updates >= _STUCK_UPDATES
        and last.now - same.now >= _SHORTEST_SECONDS
    )
    if stuck:
        made = last.updates - same.updates
        return f"still acts with version {last.version:.0f} after {made:.0f} more updates"
    lags = [sight.lag for sight in sights]
    grows = all(after > before for before, after in pairwise(lags))
    is_long = len(sights) == _WINDOW and last.now - sights[0].now >= _SHORTEST_SECONDS
    if is_long and grows and lags[-1] - lags[0] >= _STUCK_UPDATES:
        growth = f"by {lags[-1] - lags[0]:.0f} updates in {last.now - sights[0].now:.0f} s"
        return f"acts with weights whose lag only grows, {growth}"
    return None
