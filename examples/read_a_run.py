# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind, and how to read it: result.json and metrics.jsonl.

python examples/read_a_run.py [RUN_DIR]    without RUN_DIR it makes a short run first
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import veldt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", nargs="?", help="directory of a run")
    parser.add_argument("--env-steps", type=int, default=20_000)
    given = parser.parse_args()
    run_dir = given.run_dir or a_short_run(given.env_steps)

    result = veldt.RunResult.load(Path(run_dir) / "result.json")
    print(f"{result.architecture} on {result.env}, stopped by {result.stopped_by}")
    print(
        f"score {result.evaluation_return}, {result.env_steps:,} steps, {result.updates:,} updates"
    )
    print(f"policy lag: mean {result.policy_lag['mean']:.2f}, max {result.policy_lag['max']}")
    for role, stages in result.stage_shares.items():
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in stages.items())
        print(f"time of {role}: {shares}")

    print("\n  seconds   env steps   return of the last 100 episodes")
    lines = (Path(run_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        shown = row["return/mean_100"]  # null until an episode has ended
        seconds = row["time"] - rows[0]["time"]
        print(
            f"{seconds:9.1f} {row['env_steps']:11,}   {'-' if shown is None else round(shown, 1)}"
        )


def a_short_run(env_steps: int) -> str:
    result = veldt.train("ppo", env="CartPole-v1", backend="serial", total_env_steps=env_steps)
    return result.run_dir


if __name__ == "__main__":
    main()
