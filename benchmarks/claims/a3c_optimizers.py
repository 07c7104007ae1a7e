# SPDX-License-Identifier: Apache-2.0
"""A3C's three optimizers over learning rates drawn at random, as its paper compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Criterion, Row, select, settings
from .learning import LearningClaim

_SHARED, _OWN, _MOMENTUM = "shared RMSProp", "RMSProp of each worker", "momentum SGD"
_OPTIONS: dict[str, dict[str, Any]] = {
    _SHARED: {"optimizer": "rmsprop", "optimizer_options": {"shared_statistics": True}},
    _OWN: {"optimizer": "rmsprop", "optimizer_options": {"shared_statistics": False}},
    _MOMENTUM: {"optimizer": "sgd", "optimizer_options": {"momentum": 0.99}},
}


@dataclass(frozen=True)
class SharedStatistics(LearningClaim):
    """A3C with one mean square for all workers, with one for each, and with momentum."""

    name = "shared_rmsprop"
    statement = "RMSProp with shared statistics is the most robust of A3C's optimizers."
    paper = "A3C (Mnih et al., 2016), section 4 and figure 8"
    rule = (
        "Each seed draws a learning rate, log-uniform from 1e-4 to 1e-2, and trains with it by each"
        " optimizer. The score averaged over evaluations is higher with shared statistics than with"
        " those of each worker, and higher with these than with momentum SGD: the intervals of both"
        " differences over seeds lie above 0. It does not hold where one lies below a tenth of the"
        " range of scores, the least that matters (serial backend, equal environment steps)."
    )
    caption = "Return of fresh episodes over environment steps, by optimizer; all learning rates."
    factors = settings(optimizer=tuple(_OPTIONS))
    quick_settings = settings(env_steps=1_500, points=2, seeds=2)
    full_settings = settings(env_steps=48_000, seeds=32)

    workers: int = 4
    """Workers."""
    envs_per_actor: int = 4
    """Environments of each."""
    env_steps: int = 12_000
    points: int = 4
    seeds: int = 14

    def measure(self, case: Row) -> Row:
        rate = float(10 ** np.random.default_rng(case["seed"]).uniform(-4, -2))
        own = {**_OPTIONS[case["optimizer"]], "learning_rate": rate}
        found = self.learn("a3c", case["seed"], self.workers, self.envs_per_actor, own)
        return {"learning_rate": rate, **found}

    def judge(self, rows: list[Row]) -> list[Criterion]:
        shared, own, momentum = ({"optimizer": name} for name in _OPTIONS)
        return [
            self.gain("score with shared minus own statistics", rows, shared, own),
            self.gain("score with own statistics minus momentum SGD", rows, own, momentum),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        groups = {name: select(rows, optimizer=name) for name in _OPTIONS}
        self.draw_returns(figure.subplots(), groups)
