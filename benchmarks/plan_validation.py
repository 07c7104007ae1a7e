# SPDX-License-Identifier: Apache-2.0
"""How far `veldt plan` is off: calibrated with 1 and 2 actors, held against runs with more.

python benchmarks/plan_validation.py [--only impala a2c] [--env ID] [--actors 4,8,32]
Rows of other calls stay in benchmarks/results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import measuring

SYSTEMS = ("impala", "apex", "a2c", "seed_rl", "sample_factory")
SLEEPING = "veldt:sleeping?step_ms=5"


def rows_of(name: str, env: str, actors: str, seconds: str) -> list[dict[str, object]]:
    words = ["-m", "veldt", "plan", name, "--env", env, "--actors", actors, "--validate", "--json"]
    words += ["--envs-per-actor", "8", "--seconds", seconds]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return [
        {
            "architecture": name,
            "env": env,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--env", default=SLEEPING)
    parser.add_argument("--actors", default="4,8,32")
    parser.add_argument("--seconds", default="6")
    given = parser.parse_args()
    path = measuring.RESULTS / "plan.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    machine = measuring.machine()
    for name in given.only:
        fresh = rows_of(name, given.env, given.actors, given.seconds)
        kept = [r for r in document["rows"] if (r["architecture"], r["env"]) != (name, given.env)]
        document["rows"] = kept + fresh
        print(name, [f"{r['actors']}: {r['predicted'] / r['measured'] - 1:+.0%}" for r in fresh])
        document |= {"machine": machine, "command": "`python benchmarks/plan_validation.py`"}
        busy = machine["load_average_before"]
        document["note"] = f"The load average was {busy} before the last call."
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
