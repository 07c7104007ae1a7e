# SPDX-License-Identifier: Apache-2.0
"""Measures a league's main player while it learns: gauges, and RUN_DIR/league/measures.jsonl."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.league.pool import ModelPool
from veldt.league.state import LeagueState
from veldt.league.strength import Strength
from veldt.networks import NetworkFactory
from veldt.ports import ParameterSource
from veldt.role import Part
from veldt.telemetry.record import MEASURES_LOG


class Past(Mapping[int, np.ndarray]):
    """The frozen models of a league's main player, read when they are asked for."""

    def __init__(self, pool: ModelPool, state: LeagueState) -> None:
        self._pool = pool
        self._models = sorted(state.models[state.roster.snapshots_of(0)].tolist())

    def __getitem__(self, model: int) -> np.ndarray:
        return self._pool.read(model)

    def __iter__(self) -> Iterator[int]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


@dataclass(eq=False)
class Measures(Part):
    """Every so many env steps of the main player, if the game has an exact measure."""

    game: str
    network: NetworkFactory
    weights: ParameterSource
    """Of the main player."""
    every_env_steps: int

    def open(self, context: NodeContext) -> None:
        self._context, self._pool = context, ModelPool(context.run_dir)
        measurable = Strength.can_measure(self.game, self.network)
        self._strength = Strength(self.game, self.network) if measurable else None
        self._vector = np.empty(self.network.initial_vector().size, np.float32)
        self._measuring = context.telemetry.stage("measure")
        self._period: int | None = None
        best = self._pool.read_best()
        self._merit = None if best is None else best[1].get("merit")

    def update(self, state: LeagueState) -> None:
        """Measure when a period has ended; one that ended before this process began is over."""
        period = int(state.env_steps[0]) // self.every_env_steps
        if self._strength is None or period == self._period:
            return
        began, self._period = self._period is None, period
        if began and period:
            return
        with self._measuring:
            version = self.weights.pull(self._vector, newer_than=-1)
            found = self._strength(self._vector, Past(self._pool, state))
        for name, value in found.items():
            self._context.telemetry.gauge(f"league.{name}").set(value)
        env_steps = int(state.env_steps.sum())
        self._log({"time": time.time(), "env_steps": env_steps, **found})
        merit = Strength.merit(found)
        if self._merit is None or merit > self._merit:
            self._merit = merit
            facts = {"merit": merit, "env_steps": env_steps, "version": version or 0}
            self._pool.write_best(self._vector, facts)

    def _log(self, entry: Mapping[str, float]) -> None:
        self._pool.folder.mkdir(exist_ok=True)
        with open(self._pool.folder / MEASURES_LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
