# SPDX-License-Identifier: Apache-2.0
"""The lag atlas: what each correction is worth when actors are behind, on three tasks.

python benchmarks/lag_atlas.py [--processes 16]    2,700 runs of 2 s; resumes where it stopped
python benchmarks/lag_atlas_report.py              figures and tables of docs/lag.md
IMPALA on the serial backend with --extra-lag; every run has the same env steps and rows per update,
and repeats bit for bit on the same kind of machine. Rates were chosen on seeds from 100 on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import veldt
from veldt.losses.trajectories import Evaluated, TrajectoryReader

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/lag_atlas.jsonl"
LAGS = (0, 1, 2, 4, 8, 16, 32, 64, 256)
SEEDS = 10
CORRECTIONS = (
    *("none", "one_step", "vtrace", "clip", "decoupled", "tis", "m2po", "ess"),
    *("icepop", "drop"),
)
"""Not `epsilon`: no probability falls below its floor here, so it is `none`."""
_MEASURED_EVERY = 16
"""Evaluations of a batch between two that are measured."""


class Upright(gymnasium.Env):  # type: ignore[misc]
    """Pendulum-v1's dynamics and costs for 50 steps from near the top, which it must keep."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-8.0, 8.0, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._angle, self._speed = self.np_random.uniform((-0.4, -0.5), (0.4, 0.5)).tolist()
        self._elapsed = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        return np.array([math.cos(self._angle), math.sin(self._angle), self._speed], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        torque = min(max(float(action[0]), -2.0), 2.0)
        cost = self._angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        speed = self._speed + 0.05 * (15.0 * math.sin(self._angle) + 3.0 * torque)
        self._speed = min(max(speed, -8.0), 8.0)
        self._angle = math.remainder(self._angle + 0.05 * self._speed, math.tau)
        self._elapsed += 1
        return self._observe(), -cost, False, self._elapsed >= 50, {}


@dataclass(frozen=True)
class Task:
    """An environment, and the constants that suit it without lag."""

    env: Any
    chance: float
    """Return of a policy that acts at random, which is 0 on the scale of scores."""
    envs: int
    steps: int
    """Rows of a trajectory; a batch is one trajectory of `envs` columns."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def env_steps(self) -> int:
        return UPDATES * self.envs * self.steps


UPDATES = 512
TASKS = {
    "CartPole": Task(
        "CartPole-v1",
        22.0,
        128,
        8,
        {
            "learning_rate": 3e-3,
            "gamma": 0.97,
            "trace_lambda": 1.0,
            "network_options": {"hidden_sizes": (64,)},
        },
    ),
    "Catch": Task(
        "veldt/Catch-v0",
        -0.6,
        16,
        5,
        {
            "learning_rate": 5e-3,
            "network": "mlp",
            "network_options": {"hidden_sizes": (32,)},
        },
    ),
    "Upright": Task(
        Upright,
        -140.0,
        32,
        5,
        {
            "learning_rate": 1e-2,
            "gamma": 0.9,
            "entropy_coefficient": 0.01,
            "network_options": {"hidden_sizes": (32,)},
        },
    ),
}
SHARED: dict[str, Any] = {
    "backend": "serial",
    "device": "cpu",
    "num_actors": 1,
    "queue_trajectories": 1,
    "minibatches": 2,
    "optimizer": "adam",
    "optimizer_options": {"decay_learning_rate": True, "optimizer_epsilon": 1e-5},
    "evaluation_episodes": 20,
    "trackers": ("none",),
    "quiet": True,
}

Case = tuple[str, str, int, int]
"""Task, correction, lag, seed."""


class Ratios:
    """Measures u = pi / mu of every 16th batch that a learner evaluates."""

    def __init__(self) -> None:
        self._calls, self._sums = 0, torch.zeros(4)

    def __enter__(self) -> Ratios:
        evaluate = self._evaluate = TrajectoryReader.evaluate

        def measured(reader: TrajectoryReader, batch: Any) -> Evaluated:
            seen = evaluate(reader, batch)
            if self._calls % _MEASURED_EVERY == 0:
                self._add(seen.log_rhos[~seen.ignored])
            self._calls += 1
            return seen

        TrajectoryReader.evaluate = measured  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        TrajectoryReader.evaluate = self._evaluate  # type: ignore[method-assign]

    def _add(self, log_rhos: torch.Tensor) -> None:
        ratios = log_rhos.clamp(-20.0, 20.0).double().exp()
        divergence = (ratios - 1.0 - log_rhos).mean()
        share = ratios.sum().square() / ratios.square().sum() / len(ratios)
        clipped = (log_rhos.abs() > math.log(1.2)).double().mean()
        self._sums += torch.stack((divergence, share, clipped, torch.ones(()))).float()

    def means(self) -> dict[str, float]:
        """KL(mu || pi), effective share of the rows, share of the rows beyond PPO's clip."""
        total = self._sums.tolist()
        return {
            name: float(f"{value / total[3]:.4g}")
            for name, value in zip(("kl", "ess", "clipped"), total, strict=False)
        }


def measure(case: Case) -> dict[str, Any]:
    """Train one case; the row of the results."""
    task, correction, lag, seed = case
    torch.set_num_threads(1)
    chosen = TASKS[task]
    row: dict[str, Any] = {"task": task, "correction": correction, "lag": lag, "seed": seed}
    with tempfile.TemporaryDirectory() as folder, Ratios() as ratios:
        try:
            result = veldt.train(
                "impala",
                env=chosen.env,
                seed=seed,
                extra_lag=lag,
                correction=correction,
                envs_per_actor=chosen.envs,
                trajectory_steps=chosen.steps,
                total_env_steps=chosen.env_steps,
                run_dir=f"{folder}/run",
                **SHARED,
                **chosen.options,
            )
        except RuntimeError as error:
            return {**row, "return": chosen.chance, "failed": str(error)[:80]}
    assert result.evaluation_return is not None
    return {
        **row,
        "return": result.evaluation_return,
        "mean_lag": round(result.policy_lag["mean"], 2),
        **ratios.means(),
        "weights": str(result.parameters_sha256)[:12],
        "machine": machine(),
    }


def cases() -> Iterable[Case]:
    """All seeds of the first eight corrections, then the others."""
    for some in (CORRECTIONS[:8], CORRECTIONS[8:]):
        for seed, lag, task, name in itertools.product(range(SEEDS), LAGS, TASKS, some):
            yield task, name, lag, seed


def load(file: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def machine() -> str:
    """What bits depend on beside the code: PyTorch and the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return f"torch {torch.__version__}, {model} {torch.backends.cpu.get_cpu_capability()}"


def run(file: Path, processes: int, pause: Path | None) -> None:
    done = {tuple(r[k] for k in ("task", "correction", "lag", "seed")) for r in load(file)}
    left = [case for case in cases() if case not in done]
    with (
        file.open("a", encoding="utf-8") as output,
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
    ):
        for row in pool.map(partial(measure_later, pause), left):
            print(json.dumps(row), file=output, flush=True)


def measure_later(pause: Path | None, case: Case) -> dict[str, Any]:
    """Measure a case once the file `pause` does not exist."""
    while pause is not None and pause.exists():
        time.sleep(3)
    return measure(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--pause-while", type=Path, help="wait while this file exists")
    given = parser.parse_args()
    run(given.file, given.processes, given.pause_while)


if __name__ == "__main__":
    main()
