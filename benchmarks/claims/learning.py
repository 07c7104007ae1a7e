# SPDX-License-Identifier: Apache-2.0
"""What claims about learning share: a task learned in seconds, whose scores differ little
between seeds, evaluations on the way instead of one at the end, and a least difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Claim, Criterion, Row, mean_over_time, select
from .figures import curves
from .training import SerialRun, curve, serial_options

RETURN = "evaluation_return"
SHARE = 0.1
"""Of the way from the worst to the best score: a smaller difference does not matter."""


@dataclass(frozen=True)
class LearningClaim(Claim):
    """Curves on Catch, by the serial backend: the same numbers on a busy machine as on a quiet one.

    The score of a run is the mean of its evaluations: one at the end says little about a task that
    is learned by then, and much about luck where it is not."""

    is_timed = False

    env: str = "veldt/Catch-v0"
    """Environment."""
    score_range: float = 2.0
    """From the worst score to the best one."""
    env_steps: int = 12_000
    """Budget of each run."""
    points: int = 6
    """Evaluations on the way."""
    seeds: int = 10

    @property
    def least(self) -> float:
        """The least difference of scores that matters."""
        return SHARE * self.score_range

    def learn(
        self,
        architecture: str,
        seed: int,
        actors: int,
        envs: int,
        own: dict[str, Any],
        **options: Any,
    ) -> Row:
        """A run with so many actors of `envs` environments: its curve."""
        given = {"network": "mlp", "preset": "control", **options}
        shared = serial_options(seed, self.env, actors, envs, **given)
        points = np.linspace(0, self.env_steps, self.points + 1)[1:].tolist()
        return {"points": curve(SerialRun(architecture, shared, own), points, over="env_steps")}

    def gain(self, what: str, rows: list[Row], better: Row, than: Row) -> Criterion:
        """That one kind of run scores more than another: above 0, and not by less than matters."""
        gains = self.score(rows, **better) - self.score(rows, **than)
        return Criterion.over_seeds(what, gains, 0.0, matters=self.least)

    def score(self, rows: list[Row], **kind: Any) -> np.ndarray:
        """One per seed."""
        return mean_over_time(rows, RETURN, **kind)

    def at_end(self, rows: list[Row], key: str, **kind: Any) -> np.ndarray:
        """One per seed: what `key` was when the budget was used up."""
        return np.array([row["points"][-1][key] for row in select(rows, **kind)])

    def draw_returns(self, axis: Any, groups: Mapping[str, list[Row]]) -> None:
        """A learning curve of each group of rows."""
        curves(axis, groups, "env_steps", RETURN, ("env steps", f"return on {self.env}"))
