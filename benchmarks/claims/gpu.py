# SPDX-License-Identifier: Apache-2.0
"""Claims about what a GPU is good for; `make claims ARGS=--gpu` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .central_inference import CentralInferenceWins
from .claim import Criterion, Row, settings
from .figures import bars, bound
from .speed import WidthClaim

_CORES, _GPU = "a3c", "ga3c"


@dataclass(frozen=True)
class BatchedOnGpu(WidthClaim):
    """A3C on all cores against GA3C with a GPU, with a small and a large network."""

    name = "ga3c_on_a_gpu"
    statement = "GA3C on a GPU outruns A3C on the cores, and the more so the larger the network."
    paper = "GA3C (Babaeizadeh et al., 2017), abstract: six times, and 45 times with large networks"
    rule = (
        "GA3C's trained steps per second on the GPU over A3C's on the cores are above 6 with the"
        " large network, and grow from the small one to it: the intervals of the ratio and of its"
        " growth over seeds lie above 6 and above 0 (process backend, as many environments)."
    )
    caption = "GA3C's trained steps per second on a GPU over A3C's on the cores, by width."
    quick_settings = settings(widths=(32, 64), actors=2, seconds=4.0, seeds=1)
    needs_gpu = True

    def notes(self, rows: list[Row]) -> list[str]:
        return [
            "The network is an MLP on CartPole, and each A3C worker steps 8 environments; the"
            " paper's workers step one game each with a convolutional network. So this compares two"
            " implementations of Veldt and does not repeat the paper's experiment."
        ]

    actors: int = 16
    """A3C's workers and GA3C's agents."""
    seconds: float = 8.0
    device: str = "cuda"
    """GA3C's."""

    def kinds(self) -> list[Row]:
        return [{"system": s, "width": width} for width in self.widths for s in (_CORES, _GPU)]

    def measure(self, case: Row) -> Row:
        device = "cpu" if case["system"] == _CORES else self.device
        return self.run_at_width(case["system"], case, device=device).row

    def _ratio(self, rows: list[Row]) -> np.ndarray:
        """[widths, seeds]"""
        return self.rates(rows, system=_GPU) / self.rates(rows, system=_CORES)

    def judge(self, rows: list[Row]) -> list[Criterion]:
        small, *_, large = self._ratio(rows)
        what = f"GA3C's rate over A3C's at width {self.widths[-1]}"
        growth = f"growth of it from width {self.widths[0]}"
        return [
            Criterion.over_seeds(what, large, 6.0),
            Criterion.over_seeds(growth, large - small, 0.0),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        groups = dict(zip(map(str, self.widths), self._ratio(rows), strict=True))
        bars(axis, groups, "GA3C's rate over A3C's")
        axis.set_xlabel("hidden units per layer")
        bound(axis, 6.0, "6")


@dataclass(frozen=True)
class CentralInferenceOnGpu(CentralInferenceWins):
    """Central inference on a GPU against local inference on cores; both learn on the GPU."""

    name = "central_inference_on_a_gpu"
    statement = "Central inference on a GPU wins when the network grows."
    full_settings = settings(widths=(64, 256, 1024, 4096), seconds=30.0, seeds=6)
    needs_gpu = True

    widths: tuple[int, ...] = (64, 2048)
    actors: int = 14
    seconds: float = 8.0
    device: str = "cuda"
