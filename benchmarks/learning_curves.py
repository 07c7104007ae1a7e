# SPDX-License-Identifier: Apache-2.0
"""Learning curves that the same command gives bit for bit: serial backend, measured in updates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veldt.backends.serial import SerialBackend
from veldt.options import RunOptions
from veldt.resolve import make_plan
from veldt.roles.evaluator import Evaluator

Point = dict[str, float]


def curve(
    architecture: str,
    options: RunOptions,
    own: dict[str, Any],
    points_updates: Sequence[int],
    gauges: Sequence[str] = (),
) -> list[Point]:
    """Greedy evaluation whenever the learner has made so many updates, and gauges of that time."""
    plan = make_plan(architecture, options, own)
    backend = SerialBackend(plan.topology, options.seed)
    backend.start()
    try:
        return [_point(plan, backend, updates, gauges) for updates in points_updates]
    finally:
        backend.stop()


def _point(plan: Any, backend: SerialBackend, updates: int, gauges: Sequence[str]) -> Point:
    def total(name: str) -> float:
        return sum(node.counters.get(name, 0.0) for node in backend.snapshots())

    while total("updates") < updates:
        backend.advance(0.0)
    weights = backend.parameters("weights")
    seed = plan.options.seed * 1000 + weights.version
    evaluator = Evaluator(plan.problem.environment, plan.topology.make_network, seed)
    try:
        returns = evaluator.returns(weights.vector)
    finally:
        evaluator.close()
    levels = {name: total(name) for name in gauges}
    return {
        "updates": total("updates"),
        "env_steps": total("env_steps"),
        "evaluation_return": float(np.mean(returns)),
        **levels,
    }


def over_seeds(
    name: str, num_seeds: int, make: Callable[[int], list[Point]]
) -> list[dict[str, Any]]:
    """The curves of seeds 1, 2, ...; says how each ended."""
    runs = []
    for seed in range(1, num_seeds + 1):
        points = make(seed)
        runs.append({"seed": seed, "points": points})
        print(f"{name} seed {seed}: {points[-1]['evaluation_return']:.1f}", flush=True)
    return runs


def mean_curve(runs: list[dict[str, Any]], key: str) -> list[float]:
    """The mean over seeds at each point."""
    columns = zip(*(run["points"] for run in runs), strict=True)
    return [statistics.mean(point[key] for point in column) for column in columns]


def draw(
    curves: dict[str, list[dict[str, Any]]], panels: Sequence[tuple[str, str]], path: Path
) -> None:
    """One panel per (key, label): the mean over seeds as a line, each seed as dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.8 * len(panels), 3.6), squeeze=False)
    for axis, (key, label) in zip(axes[0], panels, strict=True):
        for number, (name, runs) in enumerate(curves.items()):
            updates = mean_curve(runs, "updates")
            axis.plot(updates, mean_curve(runs, key), color=f"C{number}", label=name)
            for run in runs:
                values = [point[key] for point in run["points"]]
                axis.plot(updates, values, ".", color=f"C{number}", markersize=3, alpha=0.5)
        axis.set_xlabel("learner updates")
        axis.set_ylabel(label)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
