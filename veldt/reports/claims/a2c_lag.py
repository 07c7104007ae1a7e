# SPDX-License-Identifier: Apache-2.0
"""A2C and A3C with the same constants, side by side at equal environment steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veldt.reports.claims.claim import Claim, Part, Row, settings, values
from veldt.reports.claims.figures import bars
from veldt.reports.claims.training import train

_SYSTEMS = ("a2c", "a3c")


@dataclass(frozen=True)
class SynchronousMatches(Claim):
    """A2C against A3C on the serial backend."""

    name = "a2c_without_lag"
    statement = "A2C matches A3C, without lag."
    paper = "A2C (after Mnih et al., 2016)"
    rule = (
        "At equal environment steps A2C's score is at most 10% of the best possible one below"
        " A3C's: the interval of the difference over seeds lies above that; A2C's policy lag is 0"
        " in every run and A3C's is above 0."
    )
    caption = (
        "Left: return of fresh episodes when the budget of environment steps is used up. Right:"
        " mean policy lag in updates."
    )
    quick_settings = settings(env_steps=3_000, seeds=2)

    best_return: float = 500.0
    """The most that can be scored in it."""
    actors: int = 4
    """Actors of A2C and workers of A3C."""
    envs_per_actor: int = 8
    """Environments that each of them steps together."""
    env_steps: int = 50_000
    """Budget of each run."""
    seeds: int = 24

    def kinds(self) -> list[Row]:
        return [{"system": system} for system in _SYSTEMS]

    def measure(self, case: Row) -> Row:
        return train(
            case["system"],
            env=self.env,
            backend="serial",
            preset="control",  # the same loss and passes for both
            seed=case["seed"],
            num_actors=self.actors,
            envs_per_actor=self.envs_per_actor,
            total_env_steps=self.env_steps,
        ).row

    def judge(self, rows: list[Row]) -> list[Part]:
        scores = {name: values(rows, "evaluation_return", system=name) for name in _SYSTEMS}
        lag = {name: values(rows, "lag_max", system=name) for name in _SYSTEMS}
        margin = -0.1 * self.best_return
        return [
            Part.over_seeds("A2C's score minus A3C's", scores["a2c"] - scores["a3c"], margin),
            Part.exactly("largest lag of A2C", float(lag["a2c"].max()), 0.5, above=False),
            Part.exactly("largest lag of A3C", float(lag["a3c"].min()), 0.5),
        ]

    def notes(self, rows: list[Row]) -> list[str]:
        a2c, a3c = (values(rows, "evaluation_return", system=name) for name in _SYSTEMS)
        better = Part.over_seeds("", a2c - a3c, 0.0)
        return [f"That A2C scores more than A3C, by any amount, is a test of its own: it"
                f" {better.outcome} ({better.low:.0f} to {better.high:.0f})."]  # fmt: skip

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for axis, key, label in (
            (left, "evaluation_return", f"return on {self.env}"),
            (right, "lag_mean", "mean policy lag (updates)"),
        ):
            bars(axis, {name: values(rows, key, system=name) for name in _SYSTEMS}, label)
