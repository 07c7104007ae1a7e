# SPDX-License-Identifier: Apache-2.0
"""GA3C's tuner of the numbers of agents, predictors and trainers, by hill climbing.

The tuner writes the counts on a board that every node reads. Nodes beyond the count are idle. An
actor sends its current trajectory before it becomes idle, so that no data is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated

import numpy as np

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, NotNegative, Options, Positive
from veldt.ports import ParameterSink, ParameterSource
from veldt.role import Arrays, Part, Role
from veldt.types import Parameters

TUNING_LOG = "tuning.jsonl"
KINDS = AGENTS, PREDICTORS, TRAINERS = ("agents", "predictors", "trainers")

Few = Annotated[int, Bounds(1, 1000)]


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


@dataclass(eq=False)
class Gate(Part):
    """Open while the count of its kind is above this node's index."""

    counts: ParameterSource
    kind: str

    def open(self, context: NodeContext) -> None:
        self._seen, self._version = np.zeros(len(KINDS), np.float32), -1
        self._position, self._index = KINDS.index(self.kind), context.index

    def is_open(self) -> bool:
        newer = self.counts.pull(self._seen, newer_than=self._version)
        if newer is not None:
            self._version = newer
        return bool(self._seen[self._position] > self._index)


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """How many agents, predictors and trainers there are, and how far that may change."""

    num_predictors: Few = 2
    """Predictors at the start (N_P)."""
    num_trainers: Few = 2
    """Trainers at the start (N_T)."""
    most_agents: Annotated[int, Bounds(0, 1000)] = 0
    """Agents that annealing may reach; 0: twice the number at the start."""
    most_predictors: Few = 4
    """Predictors that annealing may reach."""
    most_trainers: Few = 4
    """Trainers that annealing may reach."""
    annealing: bool = True
    """Change the three counts by one while the run goes on, and keep what does not slow it."""
    annealing_window_seconds: Positive = 20.0
    """How long each change is tried."""
    annealing_warm_up_seconds: NotNegative = 10.0
    """When the first window begins."""

    def start(self, num_agents: int) -> dict[str, int]:
        """How many of each kind work at first."""
        return dict(zip(KINDS, (num_agents, self.num_predictors, self.num_trainers), strict=True))

    def most(self, num_agents: int) -> dict[str, int]:
        """How many of each kind there are, those that rest included."""
        most = (self.most_agents or 2 * num_agents, self.most_predictors, self.most_trainers)
        for (kind, first), last in zip(self.start(num_agents).items(), most, strict=True):
            if first > last:
                raise ConfigurationError(
                    f"annealing begins at {first} {kind} but may reach {last}; raise most_{kind}"
                )
        return dict(zip(KINDS, most, strict=True))


@dataclass(eq=False)
class Tuner(Role):
    """Changes one count by one per window and keeps the change if training did not slow down."""

    counts: ParameterSink
    updates: np.ndarray
    options: AnnealingOptions
    num_agents: int

    def open(self, context: NodeContext) -> None:
        self._context, options = context, self.options
        most = by_one(options.most(self.num_agents))
        start = options.start(self.num_agents)
        self._climber = HillClimber(start, context.random("tuning"), most)
        self._version = 0
        self._window_seconds = options.annealing_window_seconds
        warm_up = options.annealing_warm_up_seconds
        self._window_began = context.clock() + warm_up - self._window_seconds
        self._updates_then = int(self.updates.sum())
        self._warm = False
        telemetry = context.telemetry
        self._kept = telemetry.counter("tuning.kept")
        self._restored = telemetry.counter("tuning.restored")
        self._gauges = {name: telemetry.gauge(f"tuning.{name}") for name in KINDS}
        self._publish()

    def step(self) -> bool:
        now = self._context.clock()
        resting = not self.options.annealing
        if resting or now - self._window_began < self._window_seconds:
            return False
        updates = int(self.updates.sum())
        if self._warm:
            rate = (updates - self._updates_then) / (now - self._window_began)
            verdict = self._climber.observe(rate)
            if verdict is not None:
                self._record(verdict)
            self._publish()
        self._warm = True
        self._window_began, self._updates_then = now, updates
        return True

    def _publish(self) -> None:
        self._version += 1
        vector = np.array([self._climber.setting[n] for n in KINDS], np.float32)
        self.counts.publish(Parameters(vector, self._version))
        for name, gauge in self._gauges.items():
            gauge.set(self._climber.setting[name])

    def _record(self, verdict: Proposal) -> None:
        (self._kept if verdict.kept else self._restored).add()
        if self._context.run_dir is None:
            return
        with open(self._context.run_dir / TUNING_LOG, "a", encoding="utf-8") as file:
            file.write(verdict.to_json() + "\n")

    def state(self) -> Arrays:
        return {"counts": np.array([self._climber.accepted[n] for n in KINDS])}

    def load_state(self, state: Arrays) -> None:
        self._climber.setting = dict(zip(KINDS, state["counts"].tolist(), strict=True))
        self._publish()
