# SPDX-License-Identifier: Apache-2.0
"""Ten systems side by side: what each learns in the same seconds on two cores, with its defaults.

Every run is `veldt train SYSTEM --env TASK` on two cores of its own, without a GPU. A finished run
is a line of the output file and is not repeated, so a call continues where the last one stopped.
All systems run a seed before any runs the next, so that an early end leaves them equally many.
`python benchmarks/lineage_report.py` draws the figure of docs/evolution.md.

PYTHONPATH=. python benchmarks/lineage.py
PYTHONPATH=. python benchmarks/lineage.py --slots 8 --until 570 --out lineage.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import scores

from veldt.compare.records import versions

SYSTEMS = ("dqn", "gorila", "apex", "a3c", "a2c", "ppo", "ga3c", "impala", "seed_rl",
           "sample_factory")  # fmt: skip
SECONDS = {
    "MinAtar/Seaquest-v1": 29.0,
    "MinAtar/Asterix-v1": 29.0,
    "CartPole-v1": 9.0,
    "Acrobot-v1": 9.0,
}
"""Limit of a run by task, start and evaluation included; the short ones last, so that the slots end
together."""
_CORES = 2
_GRACE_SECONDS = 3.0
"""For the interpreter to start and for processes to end, usually."""
_STUCK_SECONDS = 25.0
"""Beyond its limit a run is killed."""
_MOST_POINTS = 60
Run = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """One run."""

    task: str
    system: str
    seed: int
    seconds: float

    def execute(self) -> Run:
        """Train on the cores of this thread; what came of it, or the error it ended with."""
        run: Run = {"task": self.task, "system": self.system, "seed": self.seed}
        run |= {"max_seconds": self.seconds, "load_before": round(os.getloadavg()[0], 2)}
        options = {"env": self.task, "seed": self.seed, "max_seconds": self.seconds}
        began = time.monotonic()
        try:
            training = measuring.train(
                self.system, self.seconds + _STUCK_SECONDS, **options, evaluation_episodes=20
            )
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            return {**run, "error": str(error)[-300:]}
        names = ("mean_return_100", "evaluation_return", "evaluation_env_steps", "env_steps",
                 "updates", "wall_seconds", "start_seconds", "stopped_by", "chosen")  # fmt: skip
        result = training.result
        if result["mean_return_100"] is None:
            return {**run, "error": f"no episode ended in {result['env_steps']:,} env steps"}
        lag = {name: value for name, value in result["policy_lag"].items() if name != "histogram"}
        run |= {name: result[name] for name in names} | {"policy_lag": lag}
        run["process_seconds"] = time.monotonic() - began
        return {**run, "curve": _curve(training)}


def _curve(training: measuring.Training) -> list[tuple[float, int, float | None]]:
    """Seconds since the start, env steps, mean return of 100 episodes."""
    rows = training.rows
    if not rows:
        return []
    began = rows[-1]["time"] - training.result["wall_seconds"]
    every = -(-len(rows) // _MOST_POINTS)
    chosen = rows[::-1][::every][::-1]  # with the last
    return [(row["time"] - began, row["env_steps"], row.get("return/mean_100")) for row in chosen]


def wanted_runs(given: argparse.Namespace, done: set[tuple[str, str, int]]) -> list[Wanted]:
    """What is still to be run: seed by seed, in each task by task."""
    return [
        Wanted(task, system, seed, min(given.max_seconds, SECONDS[task]))
        for seed in given.seeds
        for task in given.tasks
        for system in given.systems
        if (task, system, seed) not in done
    ]


def measure(given: argparse.Namespace, cores: list[int], began: float) -> None:
    """Run in slots of two cores each until all is done, or until the time is up."""
    earlier = [run for run in scores.finished(given.out) if "error" not in run]
    done = {(run["task"], run["system"], run["seed"]) for run in earlier}
    waiting: Iterator[Wanted] = iter(wanted_runs(given, done))
    command = f"python benchmarks/lineage.py --slots {given.slots}"
    here = {**measuring.machine(), **versions(("minatar",)), "command": command}
    lock = threading.Lock()

    def work(own_cores: list[int]) -> None:
        os.sched_setaffinity(0, own_cores)  # of this thread and of what it starts
        while True:
            with lock:
                wanted = next(waiting, None)
            if wanted is None:
                return
            if time.monotonic() - began + wanted.seconds + _GRACE_SECONDS > given.until:
                continue  # a shorter one may still fit
            run = {**wanted.execute(), "machine": here}
            with lock, open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(measuring.plain(run)) + "\n")
            said = run.get("error") or f"{run['mean_return_100']} after {run['env_steps']:,} steps"
            name = f"seed {wanted.seed}  {wanted.task:20} {wanted.system:15}"
            print(f"{time.monotonic() - began:4.0f} s  {name} {said}", flush=True)

    shares = [cores[slot * _CORES :][:_CORES] for slot in range(given.slots)]
    threads = [threading.Thread(target=work, args=(own,)) for own in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slots", type=int, default=1, help="runs at a time, two cores each")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=SECONDS, default=tuple(SECONDS), metavar="ID")
    parser.add_argument("--max-seconds", type=float, default=1e6, help="of a run, if below its own")
    parser.add_argument("--until", type=float, default=1e9, help="begin none that ends after this")
    parser.add_argument("--out", type=Path, default=measuring.RESULTS / "lineage.jsonl")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if given.slots * _CORES > len(cores):
        raise SystemExit(f"{given.slots} slots of {_CORES} cores, but there are {len(cores)} cores")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.pop("OMP_NUM_THREADS", None)  # Veldt then chooses for the cores that it may use
    given.out.parent.mkdir(parents=True, exist_ok=True)
    measuring.train("ppo", 120.0, env="MinAtar/Seaquest-v1", total_env_steps=500)  # fills caches
    measure(given, cores, began)


if __name__ == "__main__":
    main()
