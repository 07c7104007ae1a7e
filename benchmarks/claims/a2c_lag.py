# SPDX-License-Identifier: Apache-2.0
"""A2C and A3C with the same constants, side by side at equal environment steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .claim import Criterion, Row, select, settings
from .figures import bars
from .learning import LearningClaim

_SYSTEMS = ("a2c", "a3c")


@dataclass(frozen=True)
class SynchronousMatches(LearningClaim):
    """A2C against A3C on the serial backend."""

    name = "a2c_without_lag"
    statement = "A2C matches A3C, without lag."
    paper = "A2C (after Mnih et al., 2016)"
    rule = (
        "At equal environment steps A2C's score, averaged over evaluations, is at most a tenth of"
        " the range of scores below A3C's: the interval of the difference over seeds lies above"
        " that; A2C's policy lag is 0 in every run and A3C's is above 0 (serial backend, the same"
        " constants)."
    )
    caption = (
        "Left: return of fresh episodes over environment steps. Right: mean policy lag in updates."
    )
    factors = settings(system=_SYSTEMS)
    quick_settings = settings(env_steps=1_500, points=2, seeds=2)

    actors: int = 4
    """Actors of A2C and workers of A3C."""
    envs_per_actor: int = 8
    """Environments that each of them steps together."""
    seeds: int = 64
    first_seed: int = 201  # none of those with which the number of seeds was chosen

    def measure(self, case: Row) -> Row:
        sizes = self.actors, self.envs_per_actor
        return self.learn(case["system"], case["seed"], *sizes, own={})

    def judge(self, rows: list[Row]) -> list[Criterion]:
        a2c, a3c = (self.score(rows, system=name) for name in _SYSTEMS)
        lag = {name: self.at_end(rows, "lag_max", system=name) for name in _SYSTEMS}
        return [
            Criterion.over_seeds("A2C's score minus A3C's", a2c - a3c, -self.least),
            Criterion.exactly("largest lag of A2C", float(lag["a2c"].max()), 0.5, above=False),
            Criterion.exactly("largest lag of A3C", float(lag["a3c"].min()), 0.5),
        ]

    def notes(self, rows: list[Row]) -> list[str]:
        updates = [self.at_end(rows, "updates", system=name).mean() for name in _SYSTEMS]
        return [f"In as many steps A2C makes {updates[0]:,.0f} updates of all environments, A3C"
                f" {updates[1]:,.0f} of one worker's each."]  # fmt: skip

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        groups = {name: select(rows, system=name) for name in _SYSTEMS}
        self.draw_returns(left, groups)
        lags = {name: self.at_end(rows, "lag_mean", system=name) for name in _SYSTEMS}
        bars(right, lags, "mean policy lag (updates)")
