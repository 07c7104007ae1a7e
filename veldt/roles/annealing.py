# SPDX-License-Identifier: Apache-2.0
"""How many nodes of a kind work: a tuner writes the counts on a board, every node looks them up.

Nodes beyond the count are there but rest. An actor that is told to rest finishes and hands over its
trajectory first, so that no data is lost when it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.algorithms.hill_climbing import TUNING_LOG, HillClimber, Proposal, by_one
from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.ports import ParameterSink, ParameterSource
from veldt.types import Parameters


class Gate:
    """Open while the count at `position` is above this node's index."""

    def __init__(self, counts: ParameterSource, size: int, position: int, index: int) -> None:
        self._source, self._counts = counts, np.zeros(size, np.float32)
        self._position, self._index, self._version = position, index, -1

    def is_open(self) -> bool:
        newer = self._source.pull(self._counts, newer_than=self._version)
        if newer is not None:
            self._version = newer
        return bool(self._counts[self._position] > self._index)


@dataclass(frozen=True)
class TunerConfig:
    """GA3C's annealing: after a warm-up, one proposal per window."""

    names: tuple[str, ...]
    start: tuple[int, ...]
    most: tuple[int, ...]
    warm_up_seconds: float = 10.0
    window_seconds: float = 20.0
    enabled: bool = True


@dataclass(frozen=True)
class AnnealingSettings:
    """How many agents, predictors and trainers there are, and how far that may change."""

    num_predictors: int = 2
    """Predictors at the start (N_P)."""
    num_trainers: int = 2
    """Trainers at the start (N_T)."""
    most_agents: int = 0
    """Agents that annealing may reach; 0: twice the number at the start."""
    most_predictors: int = 4
    """Predictors that annealing may reach."""
    most_trainers: int = 4
    """Trainers that annealing may reach."""
    annealing: bool = True
    """Change the three counts by one while the run goes on, and keep what does not slow it."""
    annealing_window_seconds: float = 20.0
    """How long each change is tried."""
    annealing_warm_up_seconds: float = 10.0
    """When the first window begins."""

    def tuner(self, num_agents: int) -> TunerConfig:
        start = (num_agents, self.num_predictors, self.num_trainers)
        most = (self.most_agents or 2 * num_agents, self.most_predictors, self.most_trainers)
        if any(first < 1 or first > last for first, last in zip(start, most, strict=True)):
            raise ConfigurationError(
                f"annealing begins at {start} agents, predictors and trainers but may reach {most};"
                " each must begin between 1 and its most"
            )
        return TunerConfig(
            ("agents", "predictors", "trainers"),
            start,
            most,
            self.annealing_warm_up_seconds,
            self.annealing_window_seconds,
            self.annealing,
        )


class Tuner:
    """Changes one count by one per window and keeps the change if training did not slow down."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        counts: ParameterSink,
        updates: np.ndarray,
        config: TunerConfig,
    ) -> None:
        self._context, self._counts, self._updates, self._config = context, counts, updates, config
        start = dict(zip(config.names, config.start, strict=True))
        most = dict(zip(config.names, config.most, strict=True))
        self._climber = HillClimber(start, context.random("tuning"), by_one(most))
        self._resting = not config.enabled
        self._version = 0
        self._window_began = context.clock() + config.warm_up_seconds - config.window_seconds
        self._updates_then = int(updates.sum())
        self._warm = False
        telemetry = context.telemetry
        self._kept = telemetry.counter("tuning.kept")
        self._restored = telemetry.counter("tuning.restored")
        self._gauges = {name: telemetry.gauge(f"tuning.{name}") for name in config.names}
        self._publish()

    def step(self) -> bool:
        now = self._context.clock()
        if self._resting or now - self._window_began < self._config.window_seconds:
            return False
        updates = int(self._updates.sum())
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
        vector = np.array([self._climber.setting[n] for n in self._config.names], np.float32)
        self._counts.publish(Parameters(vector, self._version))
        for name, gauge in self._gauges.items():
            gauge.set(self._climber.setting[name])

    def _record(self, verdict: Proposal) -> None:
        (self._kept if verdict.kept else self._restored).add()
        if self._context.run_dir is None:
            return
        with open(self._context.run_dir / TUNING_LOG, "a", encoding="utf-8") as file:
            file.write(verdict.to_json() + "\n")

    def state(self) -> dict[str, np.ndarray]:
        return {"counts": np.array([self._climber.accepted[n] for n in self._config.names])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._climber.setting = dict(zip(self._config.names, state["counts"].tolist(), strict=True))
        self._publish()
