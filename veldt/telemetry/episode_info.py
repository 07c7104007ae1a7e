# SPDX-License-Identifier: Apache-2.0
"""What environments say when episodes end, averaged over the last of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from veldt.telemetry.block import MAX_INFOS
from veldt.telemetry.counters import NodeSnapshot

_STATE = "info."


class EpisodeInfo:
    """By name, the mean over the last `window` episodes that said it, or a few more: what ended
    between two looks counts as a whole."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: dict[str, tuple[float, int]] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """Sum and number by look, the oldest first."""

    def take(self, snapshots: Iterable[NodeSnapshot]) -> None:
        """Look at what all nodes have counted."""
        totals: dict[str, tuple[float, int]] = {}
        for snapshot in snapshots:
            for name, (total, count) in snapshot.infos.items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        for name, (total, count) in totals.items():
            seen = self._seen.get(name, (0.0, 0))
            self._seen[name] = (total, count)
            if count > seen[1]:
                self._add(name, total - seen[0], count - seen[1])

    def _add(self, name: str, total: float, count: int) -> None:
        if name not in self._recent and len(self._recent) >= MAX_INFOS:
            return
        looks = self._recent.setdefault(name, deque())
        looks.append((total, count))
        known = sum(each for _, each in looks)
        while known - looks[0][1] >= self._window:
            known -= looks.popleft()[1]

    def means(self) -> dict[str, float]:
        return {name: _joined(looks)[0] / _joined(looks)[1] for name, looks in self._recent.items()}

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs: the window as one look, and what was seen."""
        return {
            _STATE + name: np.array([*_joined(looks), *self._seen[name]], np.float64)
            for name, looks in self._recent.items()
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for key, numbers in state.items():
            if key.startswith(_STATE):
                total, count, seen_total, seen_count = numbers.tolist()
                name = key.removeprefix(_STATE)
                self._recent[name] = deque([(total, int(count))])
                self._seen[name] = (seen_total, int(seen_count))


def with_nothing_seen(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same window, for nodes that have counted nothing yet."""
    nothing = np.array([1.0, 1.0, 0.0, 0.0])
    return {
        name: numbers * nothing if name.startswith(_STATE) else numbers
        for name, numbers in state.items()
    }


def _joined(looks: Iterable[tuple[float, int]]) -> tuple[float, int]:
    totals, counts = zip(*looks, strict=True)
    return sum(totals), sum(counts)
