# SPDX-License-Identifier: Apache-2.0
"""Veldt through its command line, one run, told in the words that the peers' adapters use.

The rules of a score are built into `--target-return`; a rate run is ended when its window is full.
`_256` steps as many environments as Sample Factory's best setting.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import referee

SETTINGS: dict[str, tuple[str, ...]] = {
    "impala": (),
    "impala_256": ("--envs-per-actor", "256"),
    "a3c": (),
    "a2c": (),
    "sample_factory": (),
    "sample_factory_256": ("--envs-per-actor", "256"),
}


def command(given: Namespace, run_dir: Path) -> list[str]:
    """What a user would type."""
    architecture = given.setting.removesuffix("_256")
    words = [sys.executable, "-m", "veldt", "train", architecture, "--env", given.env, "--quiet"]
    words += ["--seed", str(given.seed), "--run-dir", str(run_dir), *SETTINGS[given.setting]]
    words += ["--max-seconds", str(given.limit)]
    if given.env != "CartPole-v1":
        words += ["--network", "nature"]
    if given.mode == "score":
        words += ["--target-return", str(given.target)]
    episodes = referee.EVALUATION_EPISODES if given.mode == "score" else 0
    return [*words, "--evaluation-episodes", str(episodes)]


def marks_of(run_dir: Path) -> list[referee.Mark]:
    """Seconds and trained steps so far, about once per second from the first update on."""
    file = run_dir / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [(row["time"], row["counter/trained_env_steps"]) for row in rows if row.get("updates")]


def run(given: Namespace, run_dir: Path) -> None:
    """Until its own end or, where a rate is measured, until the window is full."""
    process = subprocess.Popen(command(given, run_dir), stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.5 if given.mode == "rate" else 0.05)
        if given.mode == "score":
            continue
        marks = marks_of(run_dir)
        if marks and marks[-1][0] - marks[0][0] > given.warm_up + given.seconds:
            process.terminate()  # ends like after Ctrl-C, with a result
            process.wait()
    if not (run_dir / "result.json").exists():
        sys.exit(f"veldt train ended with exit code {process.returncode}")


def main() -> None:
    given = referee.parse(__doc__ or "", tuple(SETTINGS))
    with tempfile.TemporaryDirectory(prefix="veldt-peers-") as directory:
        run_dir = Path(directory) / "run"
        run(given, run_dir)
        result: dict[str, Any] = json.loads((run_dir / "result.json").read_text("utf-8"))
        options = json.loads((run_dir / "config.json").read_text("utf-8"))["options"]
        marks = marks_of(run_dir)
    is_score = given.mode == "score"
    rate = referee.rate_of(marks, given.warm_up, math.inf if is_score else given.seconds)
    referee.tell(
        {
            "start_seconds": result["start_seconds"],
            "steps_per_second": rate,
            "samples_per_second": rate,
            "seconds_to_crossing": None,
            "seconds_to_target": result["seconds_to_target"],
            "evaluation_return": result["evaluation_return"] if is_score else None,
            "mean_return_100": result["mean_return_100"],
            "trained_steps": marks[-1][1] if marks else 0,
            "wall_seconds": result["wall_seconds"],
            "envs": options["num_actors"] * options["envs_per_actor"],
        }
    )


if __name__ == "__main__":
    main()
