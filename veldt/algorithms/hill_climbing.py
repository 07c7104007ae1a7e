# SPDX-License-Identifier: Apache-2.0
"""Finding good counts by trying: change one number by a step, keep it unless throughput fell.

GA3C anneals its agents, predictors and trainers this way while a run goes on (HillClimber); with
`--autotune` any architecture tries actors, environments and batch before one (climb). Pure logic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

TUNING_LOG = "tuning.jsonl"


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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

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


def climb(
    start: Mapping[str, int],
    steps: Callable[[str, int], tuple[int, ...]],
    measure: Callable[[dict[str, int]], float],
    max_trials: int,
    gain: float = 1.03,
) -> tuple[dict[str, int], list[Proposal]]:
    """Walk uphill one number at a time until no neighbour is better by `gain`; the best setting and
    every trial. `gain` keeps noise from being taken for progress."""
    best: dict[str, int] = dict(start)
    log: list[Proposal] = []
    rate = measure(best)
    tried = {tuple(best.items())}
    improved = True
    while improved:
        improved = False
        for name in best:
            for value in steps(name, best[name]):
                candidate = {**best, name: value}
                if tuple(candidate.items()) in tried:
                    continue
                if len(log) == max_trials:
                    return best, log
                tried.add(tuple(candidate.items()))
                reached = measure(candidate)
                kept = reached > rate * gain
                change = f"{name} {best[name]} -> {value}"
                log.append(Proposal(candidate, change, reached, rate, kept))
                if kept:
                    best, rate, improved = candidate, reached, True
                    break
    return best, log
