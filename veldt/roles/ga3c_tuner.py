# SPDX-License-Identifier: Apache-2.0
"""GA3C's tuner of the numbers of agents, predictors and trainers, by hill climbing.

The tuner writes the counts on a board that every node reads. Nodes beyond the count are idle. An
actor sends its current trajectory before it becomes idle, so that no data is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.options.checked import Bounds, NotNegative, Options, Positive
from veldt.options.groups import ANNEALING_OPTIONS
from veldt.ports import ParameterSink, ParameterSource
from veldt.role import Arrays, Part, Role
from veldt.types import Parameters

TUNING_LOG = "tuning.jsonl"
KINDS = AGENTS, PREDICTORS, TRAINERS = ("agents", "predictors", "trainers")

Few = Annotated[int, Bounds(1, 1000)]


@dataclass(frozen=True)
class Proposal:
    """One change of a count and whether it was kept."""

    setting: dict[str, int]
    change: str
    throughput: float
    """With the changed setting."""
    previous: float
    """With the last accepted setting."""
    kept: bool


class HillClimber:
    """Alternates between changing one count by one and judging the change.

    Counts stay between 1 and `most`. A change is restored iff its throughput is below that of the
    last accepted setting when it was accepted. GA3C's own code compares with the window before,
    so that it may accept a bad setting after a worse one; here a lucky window holds for long."""

    def __init__(
        self, setting: dict[str, int], most: Mapping[str, int], random: np.random.Generator
    ) -> None:
        self.setting, self.accepted = setting, setting
        self._most, self._random = most, random
        self._throughput: float | None = None
        self._change = ""

    def observe(self, throughput: float) -> Proposal | None:
        """Judge the present setting by its throughput and change `setting` to the next one to try.

        Returns the verdict on the last change, or None the first time."""
        verdict = None
        if self._throughput is not None:
            kept = throughput >= self._throughput
            verdict = Proposal(self.setting, self._change, throughput, self._throughput, kept)
        if verdict is None or verdict.kept:
            self.accepted, self._throughput = self.setting, throughput
        self._propose()
        return verdict

    def _propose(self) -> None:
        moves = [
            (name, value)
            for name, present in self.accepted.items()
            for value in (present - 1, present + 1)
            if 1 <= value <= self._most[name]
        ]
        name, value = moves[int(self._random.integers(len(moves)))]
        self._change = f"{name} {self.accepted[name]} -> {value}"
        self.setting = {**self.accepted, name: value}


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
    """How many agents, predictors and trainers there are, and the bounds of annealing."""

    num_predictors: Few = 2
    """Predictors at the start (N_P)."""
    num_trainers: Few = 2
    """Trainers at the start (N_T)."""
    max_agents: Annotated[int, Bounds(0, 1000), ANNEALING_OPTIONS] = 0
    """Agents that annealing may reach; 0: twice the number at the start."""
    max_predictors: Annotated[Few, ANNEALING_OPTIONS] = 4
    """Predictors that annealing may reach."""
    max_trainers: Annotated[Few, ANNEALING_OPTIONS] = 4
    """Trainers that annealing may reach."""
    annealing: bool = True
    """Change the three counts by one during the run, and keep changes that do not slow it."""
    annealing_window_seconds: Annotated[Positive, ANNEALING_OPTIONS] = 20.0
    """How long each change is tried."""
    annealing_warm_up_seconds: Annotated[NotNegative, ANNEALING_OPTIONS] = 10.0
    """Seconds before the first window."""

    def start(self, num_agents: int) -> dict[str, int]:
        """How many of each kind work at the start."""
        return dict(zip(KINDS, (num_agents, self.num_predictors, self.num_trainers), strict=True))

    def most(self, num_agents: int) -> dict[str, int]:
        """How many of each kind there are, idle ones included."""
        most = (self.max_agents or 2 * num_agents, self.max_predictors, self.max_trainers)
        for (kind, first), last in zip(self.start(num_agents).items(), most, strict=True):
            if first > last:
                raise ConfigurationError(
                    f"annealing begins at {first} {kind} but may reach {last}; raise max_{kind}"
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
        start, most = options.start(self.num_agents), options.most(self.num_agents)
        self._climber = HillClimber(start, most, context.random("tuning"))
        self._version = 0
        self._window_seconds = options.annealing_window_seconds
        warm_up = options.annealing_warm_up_seconds
        self._window_began = context.clock() + warm_up - self._window_seconds
        self._updates_then = int(self.updates.sum())
        self._warm = False
        self._gauges = {name: context.telemetry.gauge(f"tuning.{name}") for name in KINDS}
        self._publish()

    def step(self) -> bool:
        now = self._context.clock()
        is_due = now - self._window_began >= self._window_seconds
        if not self.options.annealing or not is_due:
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
        if self._context.run_dir is None:
            return
        with open(self._context.run_dir / TUNING_LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")

    def state(self) -> Arrays:
        return {"counts": np.array([self._climber.accepted[n] for n in KINDS])}

    def load_state(self, state: Arrays) -> None:
        counts = dict(zip(KINDS, state["counts"].tolist(), strict=True))
        self._climber.setting = self._climber.accepted = counts
        self._publish()
