# SPDX-License-Identifier: Apache-2.0
"""Central against local inference while the network grows: where SEED RL overtakes IMPALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Criterion, Row, settings, values
from .figures import lines
from .speed import WidthClaim


@dataclass(frozen=True)
class CentralInferenceWins(WidthClaim):
    """Trained steps per second of local and central inference over the width of the network."""

    name = "central_inference"
    statement = "Central inference wins when the network grows."
    paper = "SEED RL (Espeholt et al., 2020)"
    rule = (
        "With the widest network central inference trains more steps per second than local"
        " inference, and its share of local inference's rate is larger there than with the"
        " narrowest network: the interval of the ratio lies above 1 and that of the growth above 0,"
        " over seeds (process backend, as many rows per update in both). With as few cores as"
        " actors this measures the work in all, not where it is done: all processes share them."
    )
    caption = (
        "Left: trained steps per second over the width of both hidden layers. Right: the rate with"
        " central inference over the rate with local inference; central inference wins above 1."
    )
    quick_settings = settings(widths=(32, 128), actors=1, seconds=4.0, seeds=1)
    full_settings = settings(widths=(32, 128, 512, 1024), seconds=10.0, seeds=6)

    architectures: tuple[str, ...] = ("impala", "seed_rl")
    """The one with local inference, then those with central inference, comma separated."""
    widths: tuple[int, ...] = (32, 1024)
    seconds: float = 5.0

    def kinds(self) -> list[Row]:
        return [
            {"architecture": architecture, "width": width}
            for width in self.widths
            for architecture in self.architectures
        ]

    def measure(self, case: Row) -> Row:
        same_rows = {"batch_trajectories": self.actors}  # per update
        done = self.run_at_width(case["architecture"], case, **same_rows)
        waits = done.result.stage_shares.get("learner", {}).get("wait")
        return {**done.row, "learner_waits": waits}

    def _ratios(self, rows: list[Row]) -> dict[str, np.ndarray]:
        local, *central = (self.rates(rows, architecture=name) for name in self.architectures)
        names = self.architectures[1:]
        return {name: rates / local for name, rates in zip(names, central, strict=True)}

    def judge(self, rows: list[Row]) -> list[Criterion]:
        narrow, wide = self.widths[0], self.widths[-1]
        parts = []
        for name, ratio in self._ratios(rows).items():
            share = f"{name}'s rate over {self.architectures[0]}'s"
            growth = ratio[-1] - ratio[0]
            parts.append(Criterion.over_seeds(f"{share} at width {wide}", ratio[-1], 1.0))
            parts.append(
                Criterion.over_seeds(f"growth of {share} from width {narrow}", growth, 0.0)
            )
        return parts

    def notes(self, rows: list[Row]) -> list[str]:
        texts, wide = [], self.widths[-1]
        for name in self.architectures:
            waits = np.nanmean(values(rows, "learner_waits", architecture=name, width=wide))
            texts.append(f"{name}'s learner waits {waits:.0%} of the time at width {wide}.")
        return texts

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        rates = {name: self.rates(rows, architecture=name) for name in self.architectures}
        lines(left, self.widths, rates, ("hidden units per layer", "trained steps per second"))
        if np.isfinite(list(rates.values())).any():
            left.set_yscale("log")
        lines(right, self.widths, self._ratios(rows), ("hidden units per layer", "ratio of rates"))
        right.axhline(1.0, color="black", linestyle="--", linewidth=1)
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.set_xticks(self.widths, [str(width) for width in self.widths])
