# SPDX-License-Identifier: Apache-2.0
"""A3C with 1 to 8 workers: how alike successive updates are, and how fast they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from veldt.losses import Loss, Objective, Tensors
from veldt.networks import Network
from veldt.roles.learner import Learner
from veldt.topology import Topology

from ..environments import SLEEPING
from .claim import Criterion, Row, settings, values
from .figures import bars
from .speed import SpeedClaim
from .training import SerialRun, serial_options


@dataclass(frozen=True)
class AsynchronousActors(SpeedClaim):
    """A3C with 1 to 8 workers, on serial for correlation and on processes for speed."""

    name = "async_actors"
    statement = "Asynchronous actors decorrelate the data and collect it faster."
    paper = "A3C (Mnih et al., 2016)"
    rule = (
        "The correlation between the data of successive updates falls by more than 0.1 from one"
        " worker to the largest number (serial backend, one environment each, a policy that does"
        " not change); and the largest number trains more than half as many times faster as there"
        " are workers on environments that sleep (process backend). Both intervals over seeds must"
        " clear the bound."
    )
    caption = (
        "Left: correlation between the mean observations of successive updates. Right: environment"
        " steps per second."
    )
    factors = settings(workers="workers")
    quick_settings = settings(workers=(1, 2), seconds=3.0, watched_updates=60, seeds=1)
    full_settings = settings(workers=(1, 2, 4, 8), seconds=8.0, seeds=8)

    workers: tuple[int, ...] = (1, 8)
    """Numbers of workers, comma separated; the first is what the others are compared with."""
    step_ms: float = 15.0
    """How long a step takes in the runs whose speed counts."""
    seconds: float = 5.0
    watched_updates: int = 300
    """Updates whose data is compared."""
    seeds: int = 4

    def measure(self, case: Row) -> Row:
        slow = {"env": SLEEPING, "env_options": {"step_ms": self.step_ms}}
        done = self.run("a3c", case["seed"], case["workers"], 1, **slow)
        return {**done.row, "correlation": self._correlation(case)}

    def _correlation(self, case: Row) -> float:
        seen: list[np.ndarray] = []
        options = serial_options(case["seed"], self.env, case["workers"], envs=1)
        with SerialRun("a3c", options, {"learning_rate": 0.0}, partial(_watch, seen)) as run:
            run.advance_to("updates", self.watched_updates)
        return successive_correlation(np.stack(seen[: self.watched_updates]))

    def judge(self, rows: list[Row]) -> list[Criterion]:
        one, most = self.workers[0], self.workers[-1]
        fall = values(rows, "correlation", workers=one) - values(rows, "correlation", workers=most)
        rates = [values(rows, "env_steps_per_second", workers=n) for n in (one, most)]
        times = f"times as many steps per second with {most} workers"
        return [
            Criterion.over_seeds(
                f"fall of the correlation from {one} to {most} workers", fall, 0.1
            ),
            Criterion.over_seeds(times, rates[1] / rates[0], most / one / 2),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        panels = {
            "correlation": "correlation of successive updates",
            "env_steps_per_second": "env steps per second",
        }
        for axis, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            bars(axis, {f"{n}": values(rows, key, workers=n) for n in self.workers}, label)
            axis.set_xlabel("workers")


def successive_correlation(means: np.ndarray) -> float:
    """Correlation between row k and row k + 1 of [updates, features], mean over the features."""
    centred = means - means.mean(axis=0)
    power = (centred**2).mean(axis=0)
    return float(np.mean((centred[1:] * centred[:-1]).mean(axis=0) / np.maximum(power, 1e-12)))


@dataclass(eq=False)
class _Watched(Objective):
    """An objective that also hands on the mean observation of every batch."""

    objective: Objective
    note: Callable[[np.ndarray], None]

    def open(self, network: Network) -> None:
        self.objective.open(network)

    def __call__(self, batch: Tensors) -> Loss:
        self.note(batch["observation"].float().mean(dim=(0, 1)).numpy())
        return self.objective(batch)


def _watch(seen: list[np.ndarray], topology: Topology) -> None:
    for node in topology.of("learner"):
        assert isinstance(node.role, Learner)
        node.role = replace(node.role, objective=_Watched(node.role.objective, seen.append))
