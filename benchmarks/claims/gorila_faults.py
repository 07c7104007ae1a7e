# SPDX-License-Identifier: Apache-2.0
"""Gorila with a worker that sends stale or corrupted gradients, with and without dropping them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.ports import Gradient
from veldt.roles.learner import Learner
from veldt.roles.parameter_server import OutlierOptions, RemoteGradients
from veldt.topology import Topology

from .claim import Claim, Criterion, Row, mean_over_time, select, settings
from .figures import curves
from .training import SerialRun, curve, serial_options

_NONE, _STALE, _OUTLIER = "none", "stale", "outlier"
_RETURN = "evaluation_return"
_PROBES = (
    "The faults were chosen in probes with seeds 1 and 2. Rewards a thousand times too large in one"
    " of 50 batches changed little there, dropped or not: the loss bounds its gradient. Corrupted"
    " gradients among the first 200, when the filter has no bound yet, ended learning either way;"
    " so the faults here begin later."
)
_OFF = {"server_options": {"max_gradient_age_updates": 10**9, "outlier_deviations": 0.0}}


@dataclass(frozen=True)
class DroppingProtects(Claim):
    """A faulty worker among healthy ones, with the server's dropping on and off."""

    name = "gorila_dropping"
    statement = "Dropping stale and outlier gradients protects Gorila."
    paper = "Gorila (Nair et al., 2015)"
    rule = (
        "With one worker that begins to send gradients of old weights, and with one that begins to"
        " send some that are far too large, the score averaged over evaluations is higher when the"
        " server drops them than when it does not: the intervals of both differences over seeds lie"
        " above 0 (serial backend)."
    )
    caption = (
        "Score of fresh episodes over environment steps: a worker that sends gradients of old"
        " weights (left) or corrupted ones (right); dropped, not dropped, and no fault at all."
    )
    is_timed = False
    quick_settings = settings(env_steps=3_000, healthy_gradients=0, points=1, seeds=1)

    workers: int = 2
    """Bundles of actor, replay and learner; the last one is faulty."""
    envs_per_worker: int = 8
    """Environments of each."""
    env_steps: int = 40_000
    """Budget of each run."""
    points: int = 8
    """Evaluations on the way."""
    healthy_gradients: int = 300
    """Gradients of the faulty worker before its fault begins; the filter of outliers needs some to
    know what is usual."""
    held_gradients: int = 200
    """Stale: gradients that the faulty worker sends before it takes new weights."""
    corrupted_every: int = 50
    """Outlier: one in so many gradients of the faulty worker is corrupted."""
    corruption: float = 1e3
    """Outlier: factor on such a gradient and its loss."""
    first_seed: int = 11  # none of the probes in which the faults were chosen

    def kinds(self) -> list[Row]:
        faults = [(_NONE, True), (_STALE, True), (_STALE, False), (_OUTLIER, True)]
        faults.append((_OUTLIER, False))
        return [{"fault": fault, "dropping": dropping} for fault, dropping in faults]

    def measure(self, case: Row) -> Row:
        sizes = self.workers, self.envs_per_worker
        options = serial_options(case["seed"], self.env, *sizes, total_env_steps=self.env_steps)
        faulty = case["fault"] != _NONE
        run = SerialRun(
            "gorila",
            options,
            {} if case["dropping"] else _OFF,
            partial(self._break, case["fault"]) if faulty else None,
        )
        points = np.linspace(0, self.env_steps, self.points + 1)[1:].tolist()
        dropped = ("dropped.stale", "dropped.outlier", "gradients_sent")
        return {"points": curve(run, points, over="env_steps", gauges=dropped)}

    def _break(self, fault: str, topology: Topology) -> None:
        """Give the last worker its fault. It neither clips nor judges its own gradients: it is the
        server that is to be protected."""
        node = topology.of("learner")[-1]
        assert isinstance(node.role, Learner)
        assert isinstance(node.role.gradients, RemoteGradients)
        faulty = FaultyGradients(
            node.role.gradients.server,
            OutlierOptions(outlier_deviations=0.0),
            healthy_gradients=self.healthy_gradients,
            held_gradients=self.held_gradients if fault == _STALE else 1,
            corrupted_every=self.corrupted_every if fault == _OUTLIER else 0,
            corruption=self.corruption,
        )
        node.role = replace(node.role, gradients=faulty)

    def judge(self, rows: list[Row]) -> list[Criterion]:
        parts = []
        for fault in (_STALE, _OUTLIER):
            on, off = (
                mean_over_time(rows, _RETURN, fault=fault, dropping=dropping)
                for dropping in (True, False)
            )
            parts.append(
                Criterion.over_seeds(f"score with dropping minus without, {fault}", on - off, 0)
            )
        return parts

    def notes(self, rows: list[Row]) -> list[str]:
        healthy = float(np.mean(mean_over_time(rows, _RETURN, fault=_NONE, dropping=True)))
        texts = [f"Without a fault the mean score is {healthy:.0f}.", _PROBES]
        for fault in (_STALE, _OUTLIER):
            ends = [row["points"][-1] for row in select(rows, fault=fault, dropping=True)]
            # Each of two shards counts what it drops.
            dropped = np.mean([end[f"dropped.{fault}"] / 2 for end in ends])
            sent = np.mean([end["gradients_sent"] for end in ends])
            texts.append(f"{fault}: {dropped:,.0f} of {sent:,.0f} gradients dropped per run.")
        return texts

    def draw(self, rows: list[Row], figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, fault in zip(axes, (_STALE, _OUTLIER), strict=True):
            groups = {
                "dropped": select(rows, fault=fault, dropping=True),
                "not dropped": select(rows, fault=fault, dropping=False),
                "no fault": select(rows, fault=_NONE),
            }
            curves(axis, groups, "env_steps", _RETURN, ("env steps", f"return on {self.env}"))
            axis.set_title(f"{fault} gradients", fontsize="small")


@dataclass(eq=False, kw_only=True)
class FaultyGradients(RemoteGradients):
    """After `healthy_gradients` it sends `held_gradients` gradients of the same weights, each with
    their true version, and one in `corrupted_every` that is wrong by a factor, as is its loss."""

    healthy_gradients: int
    held_gradients: int
    corrupted_every: int
    corruption: float

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        super().open(context, flat)
        self._left = self._applied = 0

    @property
    def _is_faulty(self) -> bool:
        return self._applied >= self.healthy_gradients

    def begin(self, version: int) -> int | None:
        if self._left == 0:
            newest = super().begin(version)
            if newest is not None:
                self._left = self.held_gradients if self._is_faulty else 1
            return newest
        return version if self._reserve() else None

    def apply(self, gradient: Gradient) -> None:
        assert gradient.loss is not None
        self._left -= 1
        self._applied += 1
        every = self.corrupted_every
        if every and self._is_faulty and self._applied % every == 0:
            gradient.vector.mul_(self.corruption)
            gradient = replace(gradient, loss=gradient.loss * self.corruption)
        super().apply(gradient)
