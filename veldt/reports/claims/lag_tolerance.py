# SPDX-License-Identifier: Apache-2.0
"""Claims about age: of gradients with many workers, and of weights under a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from veldt.reports.claims.claim import Claim, Part, Row, settings, values
from veldt.reports.claims.figures import bars, bound
from veldt.reports.claims.training import train


@dataclass(frozen=True)
class ManyWorkersAge(Claim):
    """A3C with more and more workers at equal environment steps."""

    name = "a3c_many_workers"
    statement = "With many workers A3C's gradients grow old, and a step teaches less."
    paper = "GA3C (Babaeizadeh et al., 2017); IMPALA (Espeholt et al., 2018)"
    rule = (
        "At equal environment steps and equal environments in all, the largest number of workers"
        " has a mean lag more than 2 updates above that of one worker, and scores less in fresh"
        " episodes: the intervals of the differences over seeds lie above 2 and below 0 (serial"
        " backend)."
    )
    caption = "Left: mean policy lag. Right: return of fresh episodes, by number of workers."
    quick_settings = settings(env_steps=2_000, workers=(1, 4), seeds=1)

    workers: tuple[int, ...] = (1, 4, 16)
    """Numbers of workers, comma separated."""
    envs: int = 16
    """Environments of all workers together."""
    env_steps: int = 20_000
    """Budget of each run."""
    seeds: int = 6

    def kinds(self) -> list[Row]:
        return [{"workers": workers} for workers in self.workers]

    def measure(self, case: Row) -> Row:
        return train(
            "a3c",
            env=self.env,
            backend="serial",
            seed=case["seed"],
            num_actors=case["workers"],
            envs_per_actor=self.envs // case["workers"],
            total_env_steps=self.env_steps,
        ).row

    def judge(self, rows: list[Row]) -> list[Part]:
        one, most = self.workers[0], self.workers[-1]
        lag, score = (
            values(rows, key, workers=most) - values(rows, key, workers=one)
            for key in ("lag_mean", "evaluation_return")
        )
        return [
            Part.over_seeds(f"lag with {most} workers minus with {one}", lag, 2.0),
            Part.over_seeds(f"score with {most} minus with {one}", score, 0.0, above=False),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        panels = {"lag_mean": "mean lag (updates)", "evaluation_return": "return"}
        for axis, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            bars(axis, {f"{n}": values(rows, key, workers=n) for n in self.workers}, label)
            axis.set_xlabel("workers")


@dataclass(frozen=True)
class ReplayTolerates(Claim):
    """Old weights in actors: off-policy replay against an uncorrected policy gradient."""

    name = "replay_tolerates_lag"
    statement = "Off-policy replay does not mind old weights; IMPALA without a correction does."
    paper = "Ape-X (Horgan et al., 2018); IMPALA (Espeholt et al., 2018)"
    rule = (
        "With actors so many updates behind, Ape-X loses less than 10% of the best possible score,"
        " and IMPALA without a correction loses more than that: the intervals of the losses over"
        " seeds lie below and above it (fresh episodes, serial backend, equal environment steps)."
    )
    caption = (
        "Return of fresh episodes without and with extra lag; the line is the bound of a loss."
    )
    quick_settings = settings(env_steps=2_000, extra_lag=10, seeds=1)

    best_return: float = 500.0
    """The most that can be scored."""
    extra_lag: int = 100
    """Updates that actors are behind."""
    env_steps: int = 40_000
    """Budget of each run."""
    seeds: int = 5

    def kinds(self) -> list[Row]:
        return [{"system": s, "lag": n} for s in ("apex", "impala") for n in (0, self.extra_lag)]

    def measure(self, case: Row) -> Row:
        own = {"correction": "none"} if case["system"] == "impala" else {}
        return train(
            case["system"],
            env=self.env,
            backend="serial",
            seed=case["seed"],
            num_actors=1,
            envs_per_actor=16,
            total_env_steps=self.env_steps,
            extra_lag=case["lag"],
            **own,
        ).row

    def _loss(self, rows: list[Row], system: str) -> np.ndarray:
        fresh, old = (
            values(rows, "evaluation_return", system=system, lag=lag) for lag in (0, self.extra_lag)
        )
        return (fresh - old) / self.best_return

    def judge(self, rows: list[Row]) -> list[Part]:
        apex, impala = self._loss(rows, "apex"), self._loss(rows, "impala")
        return [
            Part.over_seeds("loss of Ape-X", apex, 0.1, above=False),
            Part.over_seeds("loss of IMPALA without a correction", impala, 0.1),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        names = {"Ape-X": "apex", "IMPALA, no correction": "impala"}
        bars(axis, {name: self._loss(rows, s) for name, s in names.items()}, "score lost (share)")
        bound(axis, 0.1, "10%")
