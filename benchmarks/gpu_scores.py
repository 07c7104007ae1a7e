# SPDX-License-Identifier: Apache-2.0
"""How soon large tasks are solved on a machine with a GPU: scores of checkpoints over wall time.

python benchmarks/gpu_scores.py --run "sample_factory --env ALE/Pong-v5" --target 18 --seeds 1 2 3
python benchmarks/gpu_scores.py --run "ppo --env HalfCheetah-v5" --target 8000 --seconds 500

Each run is `veldt train` with the words of --run and a limit of seconds. It leaves a checkpoint
every few seconds; when all runs are over, each of them plays 20 fresh episodes by the game's own
rules (whole games, raw rewards). A checkpoint's seconds count from the start of the process until
its files are there, so the time that evaluation takes is not counted. Runs are lines of
benchmarks/results/gpu_scores.jsonl, written when a run is over and again with its scores.
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

from veldt.telemetry.log_files import metric_rows

_GRACE_SECONDS = 60.0
_CURVE_POINTS = 40
_KEPT = ("env_steps", "updates", "counter/trained_env_steps", "counter/gradient_steps",
         "return/mean_100", "lag/mean")  # fmt: skip
Run = dict[str, Any]


def trained(words: list[str], seed: int, run_dir: Path, arguments: argparse.Namespace) -> Run:
    """One run; its checkpoints are not evaluated yet."""
    own = ["--seed", str(seed), "--max-seconds", f"{arguments.seconds:g}"]
    saved = ["--checkpoint-options", f"seconds={arguments.every:g},keep=1000"]
    command = [sys.executable, "-m", "veldt", "train", *words, *own]
    began = time.time()
    done = subprocess.run(
        [*command, *saved, "--evaluation-episodes", "0", "--run-dir", str(run_dir)],
        cwd=measuring.ROOT, capture_output=True, text=True, check=False,
        timeout=arguments.seconds + _GRACE_SECONDS,
    )  # fmt: skip
    run: Run = {"command": " ".join(["veldt", "train", *words, *own]), "seed": seed}
    run |= {"target": arguments.target, "seconds": time.time() - began, "checkpoints": []}
    run |= {"exit_code": done.returncode, "told": done.stdout.splitlines()[:6], "reached": None}
    if done.returncode != 0:
        return run | {"failed": done.stderr[-1500:]}
    run["result"] = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    del run["result"]["run_dir"]
    run["curve"] = _thinned(metric_rows(run_dir), began)
    for folder in sorted((run_dir / "checkpoints").glob("checkpoint-*")):
        age = max(file.stat().st_mtime for file in folder.iterdir()) - began
        env_steps = int(folder.name.rpartition("-")[2])
        run["checkpoints"].append({"seconds": age, "env_steps": env_steps, "mean": None})
    return run


def _thinned(rows: list[Run], began: float) -> list[Run]:
    every = max(1, len(rows) // _CURVE_POINTS)
    more = [name for name in rows[-1] if name.startswith(("counter/loss.", "busy/"))]
    return [
        {
            "seconds": row["time"] - began,
            **{name: row[name] for name in (*_KEPT, *more) if name in row},
        }
        for row in [*rows[::every], *rows[-1:]]
    ]


def evaluate(runs: dict[Path, Run], arguments: argparse.Namespace) -> None:
    """Fill in the scores of checkpoints, the newest first; what takes too long stays unknown."""
    deadline = time.monotonic() + arguments.evaluation_seconds
    waiting = [
        (run_dir, checkpoint)
        for run_dir, run in runs.items()
        for checkpoint in run["checkpoints"]
        if checkpoint["seconds"] >= arguments.after
    ]
    waiting.sort(key=lambda entry: -entry[1]["seconds"])
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1)) as pool:
        list(pool.map(lambda entry: _evaluate(*entry, arguments.episodes, deadline), waiting))
    for run in runs.values():
        known = [entry for entry in run["checkpoints"] if entry["mean"] is not None]
        run["reached"] = next((e for e in known if e["mean"] >= run["target"]), None)


def _evaluate(run_dir: Path, checkpoint: Run, episodes: int, deadline: float) -> None:
    command = [sys.executable, "-m", "veldt", "evaluate", str(run_dir), "--json"]
    command += ["--checkpoint", str(checkpoint["env_steps"]), "--episodes", str(episodes)]
    try:
        done = subprocess.run(
            [*command, "--seed", "10000"], cwd=measuring.ROOT, capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
            timeout=max(0.0, deadline - time.monotonic()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return
    found = json.loads(done.stdout)
    checkpoint |= {name: found[name] for name in ("mean", "min", "max")}


def save(runs: list[Run], arguments: argparse.Namespace, before: str) -> None:
    lines = [json.dumps(measuring.plain(run)) for run in runs]
    path = arguments.results / f"{arguments.name}.jsonl"
    path.write_text(before + "".join(f"{line}\n" for line in lines), encoding="utf-8")


def told(run: Run) -> str:
    if run["exit_code"]:
        return f"{run['command']}: failed: {run['failed']}"
    known = [entry for entry in run["checkpoints"] if entry["mean"] is not None]
    scores = ", ".join(f"{entry['seconds']:.0f} s {entry['mean']:.1f}" for entry in known)
    return f"{run['command']}: {run['result']['env_steps']:,} env steps; {scores}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="append", required=True, help="words of veldt train")
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between checkpoints")
    parser.add_argument("--after", type=float, default=0.0, help="seconds; not evaluated before")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--evaluation-seconds", type=float, default=600.0, help="of all together")
    parser.add_argument("--name", default="gpu_scores", help="of the file with results")
    parser.add_argument("--results", type=Path, default=measuring.RESULTS, help="folder")
    arguments = parser.parse_args()
    path = arguments.results / f"{arguments.name}.jsonl"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    shared = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    machine = {**measuring.machine(), "gpu": gpu, "mps": shared}
    runs: dict[Path, Run] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-scores-") as directory:
        for text in arguments.run:
            for seed in arguments.seeds:
                run_dir = Path(directory) / str(len(runs))
                run = trained(shlex.split(text), seed, run_dir, arguments)
                runs[run_dir] = {**run, "machine": machine}
                print(told(run), flush=True)
                save(list(runs.values()), arguments, before)
        evaluate(runs, arguments)
        save(list(runs.values()), arguments, before)
    for run in runs.values():
        print(told(run), flush=True)


if __name__ == "__main__":
    main()
