# SPDX-License-Identifier: Apache-2.0
"""Trained steps/s of this tree over those of another checkout, architecture by architecture.

For changes that should cost nothing. Both trees run the same options in turns, so that a slow
minute of the machine hits both; the ratio is that of the medians. Rows of architectures that a call
leaves out stay in benchmarks/results/two_trees.json.

    git worktree add ../before 97deb34
    python benchmarks/two_trees.py --before ../before
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring

from veldt.telemetry.aggregate import steady_rate
from veldt.telemetry.log_files import metric_rows

ARCHITECTURES = (
    "dqn", "gorila", "a3c", "a2c", "ga3c", "apex", "impala", "seed_rl", "sample_factory",
)  # fmt: skip
SETTINGS = ["--env", "CartPole-v1", "--backend", "process", "--preset", "control"]
SETTINGS += ["--envs-per-actor", "64", "--evaluation-episodes", "0", "--seed", "1"]


def trained_steps_per_second(tree: Path, architecture: str, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "veldt", "train", architecture, *SETTINGS, "--quiet"]
        command += ["--max-seconds", str(seconds), "--run-dir", f"{folder}/run"]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
        return steady_rate(metric_rows(Path(folder) / "run"), "counter/trained_env_steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--only", nargs="+", default=list(ARCHITECTURES))
    arguments = parser.parse_args()
    trees = {"before": arguments.before.resolve(), "now": measuring.ROOT}
    machine = measuring.machine()
    path = measuring.RESULTS / "two_trees.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for architecture in arguments.only:
        found: dict[str, list[float]] = {name: [] for name in trees}
        for repeat in range(arguments.repeats):
            order = list(trees) if repeat % 2 else list(trees)[::-1]
            for name in order:
                rate = trained_steps_per_second(trees[name], architecture, arguments.seconds)
                found[name].append(round(rate))
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        ratio = round(medians["now"] / medians["before"], 3)
        kept = [row for row in kept if row["architecture"] != architecture]
        about = {"command": machine["command"], "commit": machine["commit"]}
        kept.append({"architecture": architecture, "ratio": ratio, **found, **about})
        kept.sort(key=lambda row: ARCHITECTURES.index(row["architecture"]))
        print(f"{architecture:>15}  {ratio:.3f}  {medians}", flush=True)
        measuring.save("two_trees", {"machine": machine, "rows": kept})


if __name__ == "__main__":
    main()
