# SPDX-License-Identifier: Apache-2.0
"""Claims about age: of gradients with many workers, and of weights under a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Criterion, Row, select, settings
from .figures import bars, bound
from .learning import SHARE, LearningClaim

_ROWS_PER_UPDATE = {"apex": 4, "impala": 144}
"""Environment steps for each update: 16 environments times 9 rows that count, for IMPALA."""


@dataclass(frozen=True)
class ManyWorkersAge(LearningClaim):
    """A3C with more and more workers at equal environment steps."""

    name = "a3c_many_workers"
    statement = "With many workers A3C's gradients grow old, and a step teaches less."
    paper = "GA3C (Babaeizadeh et al., 2017); IMPALA (Espeholt et al., 2018)"
    rule = (
        "At equal environment steps and rows per update many workers of one environment each have a"
        " mean lag more than 2 updates above that of one such worker, which has none, and a lower"
        " score, averaged over evaluations: the intervals of the differences over seeds lie above 2"
        " and below 0. It does not hold where the loss of score is shown to be less than a tenth of"
        " the range of scores, the least that matters (serial backend)."
    )
    caption = (
        "Left: mean policy lag. Right: return of fresh episodes, by number of workers of one"
        " environment each; one worker with all environments makes larger and fewer updates."
    )
    factors = settings(workers="workers")
    quick_settings = settings(env_steps=1_500, points=2, workers=(1, 4), seeds=2)
    full_settings = settings(workers=(1, 4, 16), seeds=48)

    workers: tuple[int, ...] = (1, 16)
    """Numbers of workers, comma separated."""
    env_steps: int = 8_000
    points: int = 4
    seeds: int = 32

    def kinds(self) -> list[Row]:
        """Workers of one environment each, and one worker with all environments."""
        return [{"workers": n, "envs": 1} for n in self.workers] + [
            {"workers": 1, "envs": self.workers[-1]}
        ]

    def measure(self, case: Row) -> Row:
        return self.learn("a3c", case["seed"], case["workers"], case["envs"], own={})

    def judge(self, rows: list[Row]) -> list[Criterion]:
        one, most = self.workers[0], self.workers[-1]
        ages = {n: self.at_end(rows, "lag_mean", workers=n, envs=1) for n in (one, most)}
        score = self.score(rows, workers=most, envs=1) - self.score(rows, workers=one, envs=1)
        lower = Criterion.over_seeds(
            f"score with {most} minus with {one}", score, 0.0, above=False, matters=-self.least
        )
        older = f"lag with {most} workers minus with {one}"
        return [Criterion.over_seeds(older, ages[most] - ages[one], 2.0), lower]

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        lags = {f"{n}": self.at_end(rows, "lag_mean", workers=n, envs=1) for n in self.workers}
        bars(left, lags, "mean lag (updates)")
        left.set_xlabel("workers")
        groups = {f"workers: {n}": select(rows, workers=n, envs=1) for n in self.workers}
        wide = self.workers[-1]
        groups[f"1 worker, {wide} environments"] = select(rows, workers=1, envs=wide)
        self.draw_returns(right, groups)


@dataclass(frozen=True)
class ReplayTolerates(LearningClaim):
    """Old weights in actors: off-policy replay against an uncorrected policy gradient."""

    name = "replay_tolerates_lag"
    statement = "Off-policy replay does not mind old weights; IMPALA without a correction does."
    paper = "Ape-X (Horgan et al., 2018); IMPALA (Espeholt et al., 2018)"
    rule = (
        "With actors behind by the same number of environment steps, Ape-X loses less than a tenth"
        " of the range of scores, and IMPALA without a correction loses more than that: the"
        " intervals of the losses over seeds lie below and above it (scores averaged over"
        " evaluations, serial backend, equal environment steps)."
    )
    caption = "Score that extra lag costs, in parts of the range of scores; the line is the bound."
    quick_settings = settings(env_steps=2_000, points=2, lag_env_steps=720, seeds=2)

    lag_env_steps: int = 4_320
    """Environment steps that actors are behind: 30 updates of IMPALA, 1,080 of Ape-X."""
    env_steps: int = 16_000
    points: int = 5
    seeds: int = 12
    first_seed: int = 301  # none of those with which dose and number of seeds were chosen
    learning_rate: float = 3e-3
    """IMPALA's; at the preset's its score is erratic under lag."""

    def kinds(self) -> list[Row]:
        return [{"system": s, "lagging": on} for s in _ROWS_PER_UPDATE for on in (False, True)]

    def measure(self, case: Row) -> Row:
        own: dict[str, Any] = {"correction": "none", "learning_rate": self.learning_rate}
        if case["system"] == "apex":
            own = {"batch_size": 64, "env_steps_per_update": float(_ROWS_PER_UPDATE["apex"])}
        updates = self.lag_env_steps // _ROWS_PER_UPDATE[case["system"]]
        lag = updates if case["lagging"] else 0
        return self.learn(case["system"], case["seed"], 1, 16, own, extra_lag=lag)

    def _loss(self, rows: list[Row], system: str) -> np.ndarray:
        fresh, old = (self.score(rows, system=system, lagging=on) for on in (False, True))
        return (fresh - old) / self.score_range

    def judge(self, rows: list[Row]) -> list[Criterion]:
        apex, impala = self._loss(rows, "apex"), self._loss(rows, "impala")
        return [
            Criterion.over_seeds("loss of Ape-X", apex, SHARE, above=False),
            Criterion.over_seeds("loss of IMPALA without a correction", impala, SHARE),
        ]

    def notes(self, rows: list[Row]) -> list[str]:
        share = self.lag_env_steps / self.env_steps
        lags = [f"{self.lag_env_steps // n:,} updates of {s}" for s, n in _ROWS_PER_UPDATE.items()]
        return [f"The lag of {self.lag_env_steps:,} environment steps, {share:.0%} of the run, is"
                f" {' and '.join(lags)}."]  # fmt: skip

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        names = {"Ape-X": "apex", "IMPALA, no correction": "impala"}
        bars(axis, {name: self._loss(rows, s) for name, s in names.items()}, "score lost (share)")
        bound(axis, SHARE, "a tenth")
