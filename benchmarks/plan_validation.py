# SPDX-License-Identifier: Apache-2.0
"""How far `veldt plan` is off: calibrated with 1 and 2 actors, held against runs with more.

python benchmarks/plan_validation.py [--only impala ppo] [--envs ID ...] [--actors 4,8,15]
Rows of other calls and machines stay in benchmarks/results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import measuring

SYSTEMS = ("impala", "apex", "ppo", "seed_rl", "sample_factory")
SLEEPING = "benchmarks.environments:slow_cartpole"


def rows_of(name: str, env: str, actors: str, seconds: str) -> list[dict[str, object]]:
    words = ["-m", "veldt", "plan", name, "--env", env, "--actors", actors, "--validate", "--json"]
    words += ["--envs-per-actor", "8", "--seconds", seconds]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return [
        {
            "architecture": name,
            "env": env,
            "cores": row["cores"],
            "actors": row["actors"],
            "predicted": row["env_steps_per_second"],
            "low": row["low"],
            "high": row["high"],
            "measured": row["measured_env_steps_per_second"],
            "predicted_lag": row["policy_lag"],
            "measured_lag": None if row["policy_lag"] is None else row["measured_policy_lag"],
        }
        for row in json.loads(done.stdout)
    ]


def key(row: dict[str, object]) -> tuple[object, ...]:
    return row["cores"], row["env"], row["architecture"], row["actors"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--envs", nargs="*", default=["CartPole-v1", SLEEPING])
    parser.add_argument("--actors", default="4,8,15")
    parser.add_argument("--seconds", default="6")
    given = parser.parse_args()
    path = measuring.RESULTS / "plan.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    machine = measuring.machine()
    for env in given.envs:
        for name in given.only:
            fresh = rows_of(name, env, given.actors, given.seconds)
            replaced = {key(row) for row in fresh}
            kept = [row for row in document["rows"] if key(row) not in replaced]
            document["rows"] = sorted(kept + fresh, key=key)
            off = [f"{r['actors']}: {r['predicted'] / r['measured'] - 1:+.0%}" for r in fresh]
            print(env, name, off, flush=True)
            document["machines"] = {**document.get("machines", {}), str(machine["cores"]): machine}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
