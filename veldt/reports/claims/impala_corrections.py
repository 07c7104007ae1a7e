# SPDX-License-Identifier: Apache-2.0
"""IMPALA's ablation in small: what each correction is worth when actors lag behind the learner, and
what a replay adds to V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veldt.reports.claims.claim import Claim, Part, Row, settings, values
from veldt.reports.claims.figures import bars
from veldt.reports.claims.training import train

_VTRACE = "vtrace"
CORRECTIONS = (_VTRACE, "one_step", "none")
"""The floor of "epsilon" never acts with two actions: no probability falls below 1e-6."""


@dataclass(frozen=True)
class VtraceUnderLag(Claim):
    """Three corrections without and with extra lag, and V-trace with a replay."""

    name = "vtrace_under_lag"
    statement = "V-trace beats the other corrections under lag, and profits from replay."
    paper = "IMPALA (Espeholt et al., 2018)"
    rule = (
        "Under the extra lag V-trace's score is above that of each other correction, and without it"
        " V-trace with half of each batch from a replay scores above V-trace alone: the intervals"
        " of all these differences over seeds lie above 0 (serial backend, equal environment"
        " steps)."
    )
    caption = (
        "Return of fresh episodes when the budget of environment steps is used up, by correction:"
        " without extra lag, with it, and V-trace without and with a replay."
    )
    quick_settings = settings(env_steps=2_000, high_lag=4, seeds=1)

    env_steps: int = 100_000
    """Budget of each run."""
    high_lag: int = 30
    """Updates that actors are behind."""
    learning_rate: float = 1e-3
    """The preset's is tuned to be fastest without lag and erratic with it, whatever corrects."""
    replay_fraction: float = 0.5
    """Share of each batch that is replayed, in the runs with a replay."""
    seeds: int = 8

    def kinds(self) -> list[Row]:
        corrected: list[Row] = [
            {"correction": correction, "extra_lag": lag, "replay": False}
            for lag in (0, self.high_lag)
            for correction in CORRECTIONS
        ]
        return [*corrected, {"correction": _VTRACE, "extra_lag": 0, "replay": True}]

    def measure(self, case: Row) -> Row:
        return train(
            "impala",
            env=self.env,
            backend="serial",
            seed=case["seed"],
            num_actors=1,
            envs_per_actor=32,
            total_env_steps=self.env_steps,
            extra_lag=case["extra_lag"],
            correction=case["correction"],
            learning_rate=self.learning_rate,
            replay_fraction=self.replay_fraction if case["replay"] else 0.0,
        ).row

    def _scores(self, rows: list[Row], correction: str, lag: int, replay: bool = False) -> Any:
        kind = {"correction": correction, "extra_lag": lag, "replay": replay}
        return values(rows, "evaluation_return", **kind)

    def judge(self, rows: list[Row]) -> list[Part]:
        lagged = self._scores(rows, _VTRACE, self.high_lag)
        parts = [
            Part.over_seeds(
                f"V-trace minus {other} at {self.high_lag} updates of lag",
                lagged - self._scores(rows, other, self.high_lag),
                0.0,
            )
            for other in CORRECTIONS
            if other != _VTRACE
        ]
        gain = self._scores(rows, _VTRACE, 0, replay=True) - self._scores(rows, _VTRACE, 0)
        return [*parts, Part.over_seeds("V-trace with a replay minus without", gain, 0.0)]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axes = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 2))
        for axis, lag in zip(axes, (0, self.high_lag), strict=False):
            groups = {name: self._scores(rows, name, lag) for name in CORRECTIONS}
            bars(axis, groups, f"return on {self.env}" if lag == 0 else "")
            axis.set_title(f"{lag} updates of extra lag", fontsize="small")
        names = {"alone": False, "replay": True}
        groups = {label: self._scores(rows, _VTRACE, 0, on) for label, on in names.items()}
        bars(axes[2], groups, "")
        axes[2].set_title("V-trace", fontsize="small")
