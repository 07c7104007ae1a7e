# SPDX-License-Identifier: Apache-2.0
"""Veldt's impala, a3c and ga3c against Stable-Baselines3's A2C and PPO on CartPole-v1, in one run.

Each side has its own process, environment and recommended settings; the same 64x64 tanh network,
one torch thread per process, the same rule for reaching 475 (100 training episodes, confirmed by 20
fresh ones), and the clock of the kernel's process start. Runs alternate by seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import measuring

PEER = "stable-baselines3==2.9.2"
TARGET_RETURN = 475
GOALS = {
    "steps_to_a2c": 20.0,
    "start_to_a2c": 1.0,
    "time_to_ppo": 0.25,
    "a3c_time_to_a2c": 1.0,
    "ga3c_time_to_a2c": 1.0,
}
PEERS, OURS = ("a2c", "ppo"), ("impala", "a3c", "ga3c")
_RATE_SECONDS, _LIMIT_SECONDS = 12.0, 60.0


def peer_python() -> Path:
    """The peer's own environment; made on first use."""
    home = measuring.ROOT / ".peers" / "sb3"
    python = home / "bin" / "python"
    if not (home / ".installed").exists():  # the mark that `make bench-peers` leaves
        print(f"installing {PEER} into {home.relative_to(measuring.ROOT)}")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pinned = measuring.ROOT / "benchmarks" / "peers" / "sb3.txt"
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(pinned)], check=True)
        (home / ".installed").touch()
    return python


def run_peer(python: Path, algorithm: str, seed: int, *options: str) -> dict[str, Any]:
    script = measuring.ROOT / "benchmarks" / "peers" / "run_sb3.py"
    command = [str(python), str(script), algorithm, "--seed", str(seed), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{algorithm} failed: {done.stderr.strip()[-500:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    return {name: math.nan if value is None else value for name, value in report.items()}


def run_veldt(architecture: str, seed: int) -> dict[str, float]:
    common = {"env": "CartPole-v1", "backend": "process", "seed": seed}
    rate = measuring.train(
        architecture, 120, **common, max_seconds=_RATE_SECONDS, evaluation_episodes=0
    )
    goal = measuring.train(
        architecture, 180, **common, target_return=TARGET_RETURN, max_seconds=_LIMIT_SECONDS
    )
    seconds = goal.result["seconds_to_target"]
    return {
        "start_seconds": measuring.median(
            [run.result["start_seconds"] or math.nan for run in (rate, goal)]
        ),
        "steps_per_second": rate.trained_steps_per_second,
        "seconds_to_target": math.nan if seconds is None else seconds,
        "evaluation_return": goal.result["evaluation_return"] or math.nan,
        "trained_steps": goal.result["env_steps"],
    }


def measure(seeds: int) -> dict[str, list[dict[str, Any]]]:
    python = peer_python()
    runs: dict[str, list[dict[str, Any]]] = {f"sb3 {name}": [] for name in PEERS}
    runs |= {f"veldt {name}": [] for name in OURS}
    limits = ("--mode", "score", "--limit", str(_LIMIT_SECONDS))
    for seed in range(seeds):
        for name in PEERS:
            runs[f"sb3 {name}"].append(run_peer(python, name, seed, *limits))
        for name in OURS:
            runs[f"veldt {name}"].append(run_veldt(name, seed))
        for name, reports in runs.items():
            print(f"seed {seed}  {name:12}  {json.dumps(reports[-1])}")
    return runs


def ratios_of(medians: dict[str, dict[str, float]]) -> dict[str, float]:
    ours, a2c, ppo = (medians[name] for name in ("veldt impala", "sb3 a2c", "sb3 ppo"))
    return {
        "steps_to_a2c": ours["steps_per_second"] / a2c["steps_per_second"],
        "start_to_a2c": ours["start_seconds"] / a2c["start_seconds"],
        "time_to_ppo": ours["seconds_to_target"] / ppo["seconds_to_target"],
        "time_to_ppo_crossing": ours["seconds_to_target"] / ppo["seconds_to_crossing"],
        **{
            f"{name}_time_to_a2c": medians[f"veldt {name}"]["seconds_to_target"] / _seconds(a2c)
            for name in ("a3c", "ga3c")
        },
    }


def _seconds(peer: dict[str, float]) -> float:
    """A peer that did not reach the target needs at least the limit."""
    reached = peer["seconds_to_target"]
    return _LIMIT_SECONDS if math.isnan(reached) else reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    machine, runs = measuring.machine(), measure(parser.parse_args().seeds)
    medians = {
        name: {key: measuring.median([float(report[key]) for report in reports]) for key in first}
        for name, reports in runs.items()
        if (first := reports[0])
    }
    ratios = ratios_of(medians)
    payload = {"machine": machine, "peer": PEER, "goals": GOALS, "ratios": ratios}
    path = measuring.save("versus_sb3", {**payload, "medians": medians, "runs": runs})
    columns = ("start_seconds", "steps_per_second", "seconds_to_target")
    rows = [(name, *(row[column] for column in columns)) for name, row in medians.items()]
    measuring.print_table(("median of the seeds", "start s", "steps/s", "s to 475"), rows)
    print(f"steps/s over A2C's: {ratios['steps_to_a2c']:.1f} (goal: 20 or more)")
    print(f"start over A2C's: {ratios['start_to_a2c']:.2f} (goal: 1 or less)")
    print(f"time to 475 over PPO's: {ratios['time_to_ppo']:.2f} (goal: 0.25 or less)")
    for name in ("a3c", "ga3c"):
        print(
            f"{name}'s time to 475 over A2C's: {ratios[f'{name}_time_to_a2c']:.2f} (goal: below 1)"
        )
    print(f"written to {path.relative_to(measuring.ROOT)}")


if __name__ == "__main__":
    main()
