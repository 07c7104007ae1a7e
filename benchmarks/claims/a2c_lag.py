# SPDX-License-Identifier: Apache-2.0
"""A2C and A3C with the same constants and rows per update, at equal environment steps."""

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
        "At equal environment steps and rows per update A2C's score, averaged over evaluations, is"
        " at most a tenth of the range of scores below A3C's: the interval of the difference over"
        " seeds lies above that; A2C's policy lag is 0 in every run and A3C's is above 0 (serial"
        " backend, the same constants)."
    )
    caption = (
        "Left: return of fresh episodes over environment steps. Right: mean policy lag in updates."
    )
    factors = settings(system=_SYSTEMS)
    quick_settings = settings(env_steps=1_500, points=2, seeds=2)

    actors: int = 4
    """Actors of A2C and workers of A3C."""
    envs_per_update: int = 8
    """Environments whose rows make one update: one worker's of A3C, all actors' of A2C."""
    optimizer_epsilon: float = 1e-4
    """RMSProp's, whose defaults differ."""
    seeds: int = 32
    first_seed: int = 301  # none of those with which sizes were chosen

    def measure(self, case: Row) -> Row:
        envs = self.envs_per_update
        envs = envs // self.actors if case["system"] == "a2c" else envs
        own = {"optimizer_options": {"optimizer_epsilon": self.optimizer_epsilon}}
        return self.learn(case["system"], case["seed"], self.actors, envs, own)

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
        return [f"In as many steps A2C makes {updates[0]:,.0f} updates and A3C {updates[1]:,.0f}."]

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        groups = {name: select(rows, system=name) for name in _SYSTEMS}
        self.draw_returns(left, groups)
        lags = {name: self.at_end(rows, "lag_mean", system=name) for name in _SYSTEMS}
        bars(right, lags, "mean policy lag (updates)")


@dataclass(frozen=True)
class SynchronousIsBetter(SynchronousMatches):
    """The stronger sentence, on the same runs."""

    name = "a2c_beats_a3c"
    runs_of = "a2c_without_lag"
    statement = "A2C performs better than A3C."
    paper = "OpenAI Baselines: ACKTR and A2C (Wu et al., 2017); A3C (Mnih et al., 2016)"
    rule = (
        "At equal environment steps and rows per update A2C's score, averaged over evaluations, is"
        " above A3C's: the interval of the difference over seeds lies above 0. It does not hold"
        " where it reaches no tenth of the range of scores, the least that matters (serial backend,"
        " the same constants)."
    )

    def judge(self, rows: list[Row]) -> list[Criterion]:
        return [self.gain("A2C's score minus A3C's", rows, {"system": "a2c"}, {"system": "a3c"})]
