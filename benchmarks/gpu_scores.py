# SPDX-License-Identifier: Apache-2.0
"""How soon large tasks are solved on a machine with a GPU: scores of checkpoints over wall time.

python benchmarks/gpu_scores.py --run "sample_factory --env ALE/Pong-v5" --target 18 --seeds 1 2 3
python benchmarks/gpu_scores.py --run "a2c --env HalfCheetah-v5" --target 8000 --seconds 500

Each run is `veldt train` with defaults and a limit of seconds. It leaves a checkpoint every few
seconds; when it is over, each of them plays 20 fresh episodes by the game's own rules (whole games,
raw rewards). A checkpoint's seconds count from the start of the process until its files are there,
so the time that evaluation takes is not counted. Finished runs are lines of
benchmarks/results/gpu_scores.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measuring
import torch

from veldt.reports.compare.records import metric_rows

_GRACE_SECONDS = 60.0
_CURVE_POINTS = 40
_KEPT = (
    "env_steps", "updates", "counter/trained_env_steps", "counter/gradient_steps",
    "return/mean_100", "lag/mean", "rate/env_steps",
)  # fmt: skip


def execute(words: list[str], seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gpu-scores-") as directory:
        run_dir = Path(directory) / "run"
        own = ["--seed", str(seed), "--max-seconds", f"{arguments.seconds:g}"]
        saved = ["--checkpoint-seconds", f"{arguments.every:g}", "--keep-checkpoints", "1000"]
        command = [sys.executable, "-m", "veldt", "train", *words, *own]
        began = time.time()
        done = subprocess.run(
            [*command, *saved, "--evaluation-episodes", "0", "--run-dir", str(run_dir)],
            cwd=measuring.ROOT, capture_output=True, text=True, check=False,
            timeout=arguments.seconds + _GRACE_SECONDS,
        )  # fmt: skip
        seconds = time.time() - began
        run: dict[str, Any] = {"command": " ".join(["veldt", "train", *words, *own])}
        run |= {"seed": seed, "target": arguments.target, "exit_code": done.returncode}
        run |= {"seconds": seconds, "told": _told(done.stdout)}
        if done.returncode != 0:
            return run | {"failed": done.stderr[-1500:]}
        run["result"] = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        del run["result"]["run_dir"]
        run["curve"] = _thinned(metric_rows(run_dir), began)
        run["checkpoints"] = evaluated(run_dir, began, arguments)
        good = [entry for entry in run["checkpoints"] if entry["mean"] >= arguments.target]
        run["reached"] = good[0] if good else None
        return run


def _told(text: str) -> list[str]:
    """The run's first lines: what it chose, and why."""
    return text.splitlines()[:6]


def _thinned(rows: list[dict[str, Any]], began: float) -> list[dict[str, Any]]:
    every = max(1, len(rows) // _CURVE_POINTS)
    chosen = [*rows[::every], *rows[-1:]]
    loss = [name for name in rows[-1] if name.startswith(("gauge/", "loss", "stage", "busy"))]
    kept = (*_KEPT, *loss)
    return [
        {"seconds": row["time"] - began, **{name: row[name] for name in kept if name in row}}
        for row in chosen
    ]


def evaluated(run_dir: Path, began: float, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Each checkpoint's age in seconds and the mean of its episodes, the oldest first."""
    folders = sorted((run_dir / "checkpoints").glob("checkpoint-*"))
    ages = [max(file.stat().st_mtime for file in folder.iterdir()) - began for folder in folders]
    env_steps = [int(folder.name.rpartition("-")[2]) for folder in folders]
    at_once = max(1, len(os.sched_getaffinity(0)) - 1)
    with ThreadPoolExecutor(at_once) as pool:
        means = list(pool.map(lambda steps: _mean(run_dir, steps, arguments.episodes), env_steps))
    return [
        {"seconds": age, "env_steps": steps, **mean}
        for age, steps, mean in zip(ages, env_steps, means, strict=True)
    ]


def _mean(run_dir: Path, env_steps: int, episodes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "veldt", "evaluate", str(run_dir), "--json"]
    command += ["--checkpoint", str(env_steps), "--episodes", str(episodes), "--seed", "10000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=measuring.ROOT, env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return {"mean": found["mean"], "min": found["min"], "max": found["max"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="architecture and options of veldt train")
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between checkpoints")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--name", default="gpu_scores", help="of the file with results")
    parser.add_argument("--results", type=Path, default=measuring.RESULTS, help="folder")
    arguments = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    machine = {**measuring.machine(), "gpu": gpu}
    for seed in arguments.seeds:
        run = execute(shlex.split(arguments.run), seed, arguments)
        with open(arguments.results / f"{arguments.name}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(measuring.plain({**run, "machine": machine})) + "\n")
        if run["exit_code"]:
            print(f"{run['command']}: failed: {run['failed']}", flush=True)
            continue
        scores = ", ".join(f"{c['seconds']:.0f} s {c['mean']:.1f}" for c in run["checkpoints"])
        print(f"{run['command']}: {scores}", flush=True)


if __name__ == "__main__":
    main()
