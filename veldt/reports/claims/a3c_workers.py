# SPDX-License-Identifier: Apache-2.0
"""A3C with 1, 2 and 4 workers: how alike successive updates are, and how long a score takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from veldt.networks import Network
from veldt.objectives import Loss, Objective, Tensors
from veldt.reports.claims.claim import Claim, Part, Row, settings, values
from veldt.reports.claims.figures import bars
from veldt.reports.claims.training import SerialRun, serial_options, train
from veldt.resources import usable_cores
from veldt.roles.learner import Learner
from veldt.topology import Topology


@dataclass(frozen=True)
class AsynchronousActors(Claim):
    """A3C with 1, 2 and 4 workers, on serial for correlation and on processes for time."""

    name = "async_actors"
    statement = "Asynchronous actors decorrelate the data and speed up learning."
    paper = "A3C (Mnih et al., 2016)"
    rule = (
        "The correlation between the data of successive updates falls by more than 0.1 from one"
        " worker to the largest number (serial backend); and as many workers as there are cores"
        " reach the score sooner than one: the ratio of their times is above 1 (process backend)."
        " Both intervals over seeds must clear the bound."
    )
    caption = (
        "Left: correlation between the mean observations of successive updates. Middle: seconds to"
        " the confirmed score; a run that did not reach it counts with its whole budget. Right: the"
        " environment steps of all workers until then."
    )
    quick_settings = settings(workers=(1, 2), max_seconds=2.0, watched_updates=60, seeds=1)

    workers: tuple[int, ...] = (1, 2, 4)
    """Numbers of workers, comma separated; the first is what the others are compared with."""
    envs_per_worker: int = 8
    """Environments that each worker steps together."""
    target_return: float = 475.0
    """The score, confirmed by fresh episodes."""
    max_seconds: float = 30.0
    """Budget of a run that does not reach it."""
    watched_updates: int = 400
    """Updates whose data is compared."""

    def kinds(self) -> list[Row]:
        return [{"workers": workers} for workers in self.workers]

    def measure(self, case: Row) -> Row:
        done = train(
            "a3c",
            env=self.env,
            backend="process",
            seed=case["seed"],
            num_actors=case["workers"],
            envs_per_actor=self.envs_per_worker,
            target_return=self.target_return,
            max_seconds=self.max_seconds,
            evaluation_episodes=20,
        )
        return {
            **done.row,
            "correlation": self._correlation(case),
            "reached": done.result.reached_target,
            "seconds": done.result.seconds_to_target or self.max_seconds,
            "cores": usable_cores(),
        }

    def _correlation(self, case: Row) -> float:
        seen: list[np.ndarray] = []
        options = serial_options(
            case["seed"],
            env=self.env,
            num_actors=case["workers"],
            envs_per_actor=self.envs_per_worker,
        )
        with SerialRun("a3c", options, {}, partial(_watch, seen)) as run:
            run.advance_to("updates", self.watched_updates)
        return successive_correlation(np.stack(seen[: self.watched_updates]))

    def _at_full_width(self, rows: list[Row]) -> int:
        """The largest number of workers that have a core each; the second, if none has."""
        cores = max(row["cores"] for row in rows)
        return max((n for n in self.workers if n <= cores and n > 1), default=self.workers[1])

    def judge(self, rows: list[Row]) -> list[Part]:
        one, most, wide = self.workers[0], self.workers[-1], self._at_full_width(rows)
        alone = values(rows, "correlation", workers=one)
        fall = alone - values(rows, "correlation", workers=most)
        times = [values(rows, "seconds", workers=n) for n in (one, wide)]
        return [
            Part.over_seeds(f"fall of the correlation from {one} to {most} workers", fall, 0.1),
            Part.over_seeds(f"times as fast with {wide} workers", times[0] / times[1], 1.0),
        ]

    def notes(self, rows: list[Row]) -> list[str]:
        reached = {n: [row["reached"] for row in rows if row["workers"] == n] for n in self.workers}
        texts = [f"{n}: {sum(found)} of {len(found)}" for n, found in reached.items()]
        return [f"Runs that reached the score, by workers: {', '.join(texts)}."]

    def draw(self, rows: list[Row], figure: Any) -> None:
        panels = {
            "correlation": "correlation of successive updates",
            "seconds": "seconds to the score",
            "env_steps": "env steps to the score",
        }
        axes = figure.subplots(1, len(panels))
        for axis, (key, label) in zip(axes, panels.items(), strict=True):
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
