# SPDX-License-Identifier: Apache-2.0
"""Finding good counts by trying: change one number by a step, keep it unless throughput fell.

GA3C anneals its agents, predictors and trainers this way while a run goes on; `--autotune` uses the
same climber to choose actors, environments and batch before one. Pure logic: it owns no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Proposal:
    """One change and what came of it."""

    setting: dict[str, int]
    change: str
    throughput: float
    """What the changed setting reached."""
    previous: float
    """What the setting before it had reached."""
    kept: bool

    def describe(self) -> str:
        verdict = "kept" if self.kept else "restored"
        rates = f"{self.previous:,.1f} -> {self.throughput:,.1f} per second"
        return f"{self.change}: {rates}, {verdict}"


@dataclass
class HillClimber:
    """Alternates between proposing a neighbour and judging it.

    `steps` gives, for a name and its value, the values next to it; nothing below one is proposed.
    A change is restored iff its throughput is below the last accepted one's."""

    setting: dict[str, int]
    random: np.random.Generator
    steps: Callable[[str, int], tuple[int, ...]]
    log: list[Proposal] = field(default_factory=list)
    _accepted: dict[str, int] = field(default_factory=dict)
    _throughput: float | None = None
    _change: str = ""

    def observe(self, throughput: float) -> Proposal | None:
        """Tell how the present setting did; the verdict on the last change, if there was one.
        Afterwards `setting` holds the next one to try."""
        verdict = None
        if self._throughput is None:
            self._throughput = throughput
        else:
            kept = throughput >= self._throughput
            verdict = Proposal(dict(self.setting), self._change, throughput, self._throughput, kept)
            self.log.append(verdict)
            if kept:
                self._throughput = throughput
            else:
                self.setting = dict(self._accepted)
        self._accepted = dict(self.setting)
        self._propose()
        return verdict

    def _propose(self) -> None:
        moves = [
            (name, value)
            for name, present in self.setting.items()
            for value in self.steps(name, present)
            if value >= 1
        ]
        name, value = moves[int(self.random.integers(len(moves)))]
        self._change = f"{name} {self.setting[name]} -> {value}"
        self.setting = {**self.setting, name: value}

    @property
    def accepted(self) -> Mapping[str, int]:
        """The best setting that has been confirmed."""
        return self._accepted or self.setting


def by_one(most: Mapping[str, int]) -> Callable[[str, int], tuple[int, ...]]:
    """Neighbours one below and one above, never more than `most`."""

    def steps(name: str, value: int) -> tuple[int, ...]:
        return tuple(v for v in (value - 1, value + 1) if 1 <= v <= most[name])

    return steps
