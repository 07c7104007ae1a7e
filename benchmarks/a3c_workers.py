# SPDX-License-Identifier: Apache-2.0
"""A3C with 1, 2 and 4 workers on the process backend: steps per second and time to the score.

More workers than cores cannot be faster; the core count stands beside every number. Writes
a3c_workers.json and .png to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from measuring import machine, save, train

LIMIT_SECONDS = 600.0


def measure(workers: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run until the target is confirmed or the time is over."""
    done = train(
        "a3c",
        LIMIT_SECONDS,
        env=arguments.env,
        backend="process",
        device="cpu",
        num_actors=workers,
        envs_per_actor=arguments.envs_per_actor,
        target_return=arguments.target_return,
        max_seconds=arguments.max_seconds,
        seed=seed,
    ).result
    return {
        "workers": workers,
        "seed": seed,
        "env_steps_per_second": done["env_steps_per_second"],
        "reached_target": done["reached_target"],
        "seconds_to_target": done["seconds_to_target"],
        "start_seconds": done["start_seconds"],
        "env_steps": done["env_steps"],
        "updates": done["updates"],
        "lag_mean": done["policy_lag"]["mean"],
        "lag_max": done["policy_lag"]["max"],
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median run of each number of workers; a run without the target has no time."""
    rows = []
    for workers in sorted({entry["workers"] for entry in runs}):
        own = [entry for entry in runs if entry["workers"] == workers]
        times = [entry["seconds_to_target"] for entry in own if entry["reached_target"]]
        rows.append(
            {
                "workers": workers,
                "env_steps_per_second": statistics.median(e["env_steps_per_second"] for e in own),
                "seconds_to_target": statistics.median(times) if times else None,
                "reached": f"{len(times)} of {len(own)}",
                "lag_mean": statistics.median(entry["lag_mean"] for entry in own),
            }
        )
    return rows


def draw(rows: list[dict[str, Any]], cores: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rate, wait) = pyplot.subplots(1, 2, figsize=(8, 3.4))
    workers = [row["workers"] for row in rows]
    rate.plot(workers, [row["env_steps_per_second"] for row in rows], "o-")
    rate.set_ylabel("env steps per second")
    wait.plot(workers, [row["seconds_to_target"] for row in rows], "o-")
    wait.set_ylabel("seconds to the target, start included")
    for axis in (rate, wait):
        axis.set_xlabel("workers")
        axis.set_xticks(workers)
        axis.set_ylim(bottom=0)
        axis.axvline(cores, color="grey", linestyle=":", label=f"{cores} cores")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--target-return", type=float, default=475.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--envs-per-actor", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    about = machine()
    runs = []
    for workers in arguments.workers:
        for seed in range(1, arguments.seeds + 1):
            runs.append(measure(workers, seed, arguments))
            print(json.dumps(runs[-1]), flush=True)
    rows = summarise(runs)
    for row in rows:
        seconds = row["seconds_to_target"]
        print(
            f"{row['workers']} workers on {about['cores']} cores:"
            f" {row['env_steps_per_second']:,.0f} env steps/s, target after"
            f" {'-' if seconds is None else f'{seconds:.1f} s'} ({row['reached']}),"
            f" lag {row['lag_mean']:.2f}"
        )
    settings = {"env": arguments.env, "target_return": arguments.target_return}
    document = {"settings": settings, "machine": about, "rows": rows, "runs": runs}
    draw(rows, about["cores"], save("a3c_workers", document).with_suffix(".png"))


if __name__ == "__main__":
    main()
