# SPDX-License-Identifier: Apache-2.0
"""IMPALA on CartPole on the process backend and on Ray, in turns in one run: env steps per second
of steady state, and seconds from the start of the program to the first env step.

Writes benchmarks/results/ray_speed.json, or NAME.json with --name NAME.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from measuring import machine, median, print_table, save, train

_BACKENDS = ("process", "ray")
_LIMIT_SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="impala")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=20.0, help="of each training")
    parser.add_argument("--envs-per-actor", type=int, help="[as veldt train chooses]")
    parser.add_argument("--name", default="ray_speed", help="of the file with results")
    arguments = parser.parse_args()
    payload: dict[str, Any] = {"machine": machine(), "runs": []}
    for _ in range(arguments.rounds):
        for backend in _BACKENDS:
            payload["runs"].append(measured(arguments, backend))
    rates = {name: _median(payload["runs"], name, "env_steps_per_second") for name in _BACKENDS}
    payload["env_steps_per_second"] = rates
    payload["start_seconds"] = {
        name: _median(payload["runs"], name, "start_seconds") for name in _BACKENDS
    }
    payload["ray_to_process"] = rates["ray"] / rates["process"]
    print(f"wrote {save(arguments.name, payload)}\n")
    header = tuple(payload["runs"][0])
    print_table(header, [tuple(row[name] for name in header) for row in payload["runs"]])
    print(f"\nray to process: {payload['ray_to_process']:.2f}")


def measured(arguments: argparse.Namespace, backend: str) -> dict[str, Any]:
    done = train(
        arguments.architecture,
        arguments.max_seconds + _LIMIT_SECONDS,
        env="CartPole-v1",
        backend=backend,
        max_seconds=arguments.max_seconds,
        evaluation_episodes=0,
        **({"envs_per_actor": arguments.envs_per_actor} if arguments.envs_per_actor else {}),
    )
    return {
        "backend": backend,
        "env_steps_per_second": done.result["env_steps_per_second"],
        "trained_steps_per_second": done.trained_steps_per_second,
        "updates_per_second": done.updates_per_second,
        "start_seconds": done.result["start_seconds"] or math.nan,
        "lag_mean": done.result["policy_lag"]["mean"],
    }


def _median(rows: list[dict[str, Any]], backend: str, name: str) -> float:
    return median([row[name] for row in rows if row["backend"] == backend])


if __name__ == "__main__":
    main()
