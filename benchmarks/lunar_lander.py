# SPDX-License-Identifier: Apache-2.0
"""LunarLander-v3 to a mean return of 200 with impala and a2c, one seed after the other.

python benchmarks/lunar_lander.py --seeds 1 2
"""

from __future__ import annotations

import argparse
from typing import Any

import measuring

_SHARED = {
    "preset": "control",
    "normalize_observations": True,
    "num_actors": 2,
    "gamma": 0.99,
    "optimizer": "rmsprop",
    "learning_rate": 3e-3,
    "optimizer_options": {"decay_learning_rate": True},
    "max_grad_norm": 1.0,
    "entropy_coefficient": 0.005,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {"envs_per_actor": 16, "trajectory_steps": 40, "total_env_steps": 4_000_000},
    "a2c": {"envs_per_actor": 8, "trajectory_steps": 64, "total_env_steps": 5_000_000},
}
"""Landing is rewarded late: long trajectories, and few environments so that updates are many."""


def measure(architecture: str, seed: int, max_seconds: float) -> dict[str, Any]:
    options = {**_SHARED, **SETTINGS[architecture], "seed": seed, "max_seconds": max_seconds}
    training = measuring.train(
        architecture,
        max_seconds + 120,
        env="LunarLander-v3",
        backend="process",
        target_return=200,
        **options,
    )
    result = training.result
    names = ("reached_target", "env_steps", "wall_seconds", "mean_return_100", "evaluation_return")
    return {"architecture": architecture, "seed": seed, **{name: result[name] for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--max-seconds", type=float, default=900.0)
    arguments = parser.parse_args()
    machine, entries = measuring.machine(), []
    for architecture in arguments.architectures:
        for seed in arguments.seeds:
            entries.append(measure(architecture, seed, arguments.max_seconds))
            print(entries[-1], flush=True)
    settings = {name: {**_SHARED, **own} for name, own in SETTINGS.items()}
    payload = {"machine": machine, "settings": settings, "entries": entries}
    print(measuring.save("lunar_lander", payload).relative_to(measuring.ROOT))


if __name__ == "__main__":
    main()
