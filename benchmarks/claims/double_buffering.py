# SPDX-License-Identifier: Apache-2.0
"""Sample Factory with one group of environments and with two while inference takes its time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from veldt.types import EnvironmentSpec

from ..environments import SLEEPING
from .claim import Criterion, Row, settings, values
from .figures import bars
from .speed import SpeedClaim

_ONE, _TWO = 1, 2


@dataclass(frozen=True)
class DoubleBuffering(SpeedClaim):
    """One group of environments against two, with injected inference latency."""

    name = "double_buffering"
    statement = "Double buffering hides inference latency."
    paper = "Sample Factory (Petrenko et al., 2020)"
    rule = (
        "With two groups the actor steps its environments for a larger share of the time than with"
        " one, and the time saved per step is more than half of what the measured times predict:"
        " the intervals over seeds lie above 0 and 0.5 (process backend; stepping sleeps for a time"
        " that grows with the environments of a group, every forward pass for a fixed one)."
    )
    caption = (
        "Left: share of the time in which the actor steps environments. Right: time saved per"
        " environment step by the second group, predicted from the times of the run with one group"
        " and seen."
    )
    factors = settings(groups=(_ONE, _TWO))
    quick_settings = settings(seconds=3.0, seeds=1)
    full_settings = settings(seconds=10.0, seeds=10)

    step_ms: float = 16.0
    """How long stepping all environments takes; half of it for half of them."""
    envs: int = 64
    """Environments of the actor, in one group or in two halves."""
    latency_seconds: float = 0.008
    """What every forward pass of the policy takes longer."""
    seeds: int = 4

    def measure(self, case: Row) -> Row:
        done = self.run(
            "sample_factory",
            case["seed"],
            actors=1,
            envs=self.envs,
            env=SLEEPING,
            env_options={
                "base": self.env,
                "step_ms": self.step_ms / case["groups"],
                "wrappers": {"vectorization": "in_process"},
            },
            sampling_options={
                "groups_per_actor": case["groups"],
                "batch_trajectories": 2 * case["groups"],  # the same rows per batch either way
            },
            preset="control",  # one pass over a batch: the learner is not to be waited for
            network=partial(slow_encoder, latency_seconds=self.latency_seconds),
        )
        shares = done.result.stage_shares.get("actor", {})
        rate = done.result.env_steps_per_second
        return {
            **done.row,
            "seconds_per_row": self.envs / rate if rate else None,
            "stepping_share": shares.get("step"),
            "waiting_share": shares.get("wait"),
        }

    def _saved(self, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
        """The time saved per row of all environments, predicted and seen, as a share."""
        one, two = (values(rows, "seconds_per_row", groups=groups) for groups in (_ONE, _TWO))
        waiting = values(rows, "waiting_share", groups=_ONE) * one
        return predicted_saving(one, waiting, self.latency_seconds), 1.0 - two / one

    def judge(self, rows: list[Row]) -> list[Criterion]:
        busy = [values(rows, "stepping_share", groups=groups) for groups in (_ONE, _TWO)]
        predicted, seen = self._saved(rows)
        share = seen / np.where(predicted > 0.0, predicted, np.nan)
        return [
            Criterion.over_seeds(
                "stepping share with two groups minus one", busy[1] - busy[0], 0.0
            ),
            Criterion.over_seeds("time saved over time predicted to be saved", share, 0.5),
        ]

    def notes(self, rows: list[Row]) -> list[str]:
        predicted, seen = (100 * float(np.mean(share)) for share in self._saved(rows))
        return [
            f"Predicted to save {predicted:.0f}% of the time per step; {seen:.0f}% was saved.",
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        names = {"one group": _ONE, "two groups": _TWO}
        shares = {label: values(rows, "stepping_share", groups=g) for label, g in names.items()}
        bars(left, shares, "share of the time spent stepping")
        predicted, seen = self._saved(rows)
        groups = {"predicted": 100 * predicted, "seen": 100 * seen}
        bars(right, groups, "time saved per step (%)")


def predicted_saving(row: np.ndarray, waiting: np.ndarray, latency: float) -> np.ndarray:
    """The share of a row's time that a second group saves at best.

    One group: a row costs busy + wait seconds. Two groups of half the environments: one half is
    stepped while the other waits, and the server answers twice per row, so a row costs

        max(busy, busy / 2 + wait, 2 latency)    with busy = row - wait."""
    busy = row - waiting
    best = np.maximum(np.maximum(busy, busy / 2 + waiting), 2 * latency)
    return np.maximum(1.0 - best / row, 0.0)


class SlowEncoder(nn.Module):
    """Two small layers; acting, but not learning, takes `latency_seconds` longer."""

    def __init__(self, num_inputs: int, latency_seconds: float) -> None:
        super().__init__()
        self.latency_seconds = latency_seconds
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if torch.is_inference_mode_enabled():
            time.sleep(self.latency_seconds)
        return self.layers(observation)


def slow_encoder(spec: EnvironmentSpec, latency_seconds: float) -> SlowEncoder:
    (leaf,) = spec.observation
    return SlowEncoder(int(np.prod(leaf.shape)), latency_seconds)
