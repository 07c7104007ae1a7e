# SPDX-License-Identifier: Apache-2.0
"""IMPALA's ablation in small: what each correction is worth when actors lag behind the learner.

Four corrections, no extra lag and much of it, five seeds each, on the serial backend: the same
command gives the same numbers, bit for bit. Writes lag_ablation.json and .png to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from measuring import machine, save

import veldt
from veldt.algorithms.vtrace import CORRECTIONS

# The preset's is tuned to be as fast as possible without lag; in probes with lag it was erratic for
# every correction, which would say nothing about corrections.
LEARNING_RATE = 1e-3


def run(correction: str, lag: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training run; returns over it and at its end."""
    with tempfile.TemporaryDirectory(prefix="veldt-lag-") as directory:
        run_dir = Path(directory) / "run"
        result = veldt.train(
            "impala",
            env=arguments.env,
            backend="serial",
            device="cpu",
            seed=seed,
            run_dir=str(run_dir),
            num_actors=1,
            envs_per_actor=32,
            total_env_steps=arguments.env_steps,
            checkpoint_env_steps=10 * arguments.env_steps,
            extra_lag=lag,
            correction=correction,
            learning_rate=LEARNING_RATE,
        )
    return {
        "correction": correction,
        "extra_lag": lag,
        "seed": seed,
        "training_return": result.mean_return_100,
        "evaluation_return": result.evaluation_return,
        "lag_mean": result.policy_lag["mean"],
        "lag_max": result.policy_lag["max"],
        "updates": result.updates,
        "parameters_sha256": result.parameters_sha256,
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over seeds of each cell."""
    cells = []
    for lag in sorted({entry["extra_lag"] for entry in runs}):
        for correction in CORRECTIONS:
            cell = [e for e in runs if (e["correction"], e["extra_lag"]) == (correction, lag)]
            returns = [entry["training_return"] for entry in cell]
            greedy = [entry["evaluation_return"] for entry in cell]
            cells.append(
                {
                    "correction": correction,
                    "extra_lag": lag,
                    "return_mean": statistics.mean(returns),
                    "return_min": min(returns),
                    "return_max": max(returns),
                    "evaluation_mean": statistics.mean(greedy),
                    "lag_mean": statistics.mean(entry["lag_mean"] for entry in cell),
                }
            )
    return cells


def draw(cells: list[dict[str, Any]], runs: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lags = sorted({cell["extra_lag"] for cell in cells})
    figure, axes = pyplot.subplots(1, len(lags), figsize=(9, 3.6), sharey=True)
    for axis, lag in zip(axes, lags, strict=True):
        means = [cell["return_mean"] for cell in cells if cell["extra_lag"] == lag]
        axis.bar(range(len(CORRECTIONS)), means, color="#8aa9c8")
        for place, correction in enumerate(CORRECTIONS):
            points = [
                entry["training_return"]
                for entry in runs
                if (entry["correction"], entry["extra_lag"]) == (correction, lag)
            ]
            axis.plot([place] * len(points), points, "k.", markersize=5)
        axis.set_xticks(range(len(CORRECTIONS)), CORRECTIONS)
        axis.set_title(f"{lag} updates of extra lag")
    axes[0].set_ylabel("return of the last 100 training\nepisodes (bar: mean, dots: seeds)")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--env-steps", type=int, default=200_000)
    parser.add_argument("--high-lag", type=int, default=30, help="updates")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    about = machine()
    runs = []
    for lag in (0, arguments.high_lag):
        for correction in CORRECTIONS:
            for seed in range(1, arguments.seeds + 1):
                runs.append(run(correction, lag, seed, arguments))
                last = runs[-1]
                print(
                    f"lag {lag:3d} {correction:9s} seed {seed}:"
                    f" return {last['training_return']:6.1f}",
                    flush=True,
                )
    cells = summarise(runs)
    for cell in cells:
        print(
            f"extra lag {cell['extra_lag']:3d}  {cell['correction']:9s}"
            f" {cell['return_mean']:6.1f} ({cell['return_min']:.1f} to"
            f" {cell['return_max']:.1f}), measured lag {cell['lag_mean']:.1f}"
        )
    settings = {"env": arguments.env, "env_steps": arguments.env_steps, "lr": LEARNING_RATE}
    document = {"settings": settings, "machine": about, "cells": cells, "runs": runs}
    draw(cells, runs, save("lag_ablation", document).with_suffix(".png"))


if __name__ == "__main__":
    main()
