# SPDX-License-Identifier: Apache-2.0
"""What one `policy.act` costs on one core, for CartPole's network of every architecture.

python benchmarks/act_cost.py    writes benchmarks/results/act_cost.json
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import machine, save

import veldt
from veldt.architectures import ARCHITECTURES

_CALLS, _ROUNDS = 2_000, 9
_SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}


def microseconds(policy: veldt.TrainedPolicy) -> float:
    """The median over rounds of the mean time of one call."""
    observation, rounds = np.zeros(4, np.float32), []
    state = policy.initial_state() if policy.has_memory else None
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(_CALLS):
            policy.act(observation, state)
        rounds.append((time.perf_counter() - began) / _CALLS * 1e6)
    return statistics.median(rounds)


def main() -> None:
    torch.set_num_threads(1)
    runs = {name: (name, {}) for name in ARCHITECTURES}
    runs["impala --recurrent lstm"] = ("impala", {"recurrent": "lstm"})
    entries = []
    for label, (architecture, own) in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            options = {"total_env_steps": 60, "run_dir": str(path), **_SMALL, **own}
            veldt.train(architecture, "CartPole-v1", **options)
            cost = microseconds(veldt.load(path))
        entries.append({"run": label, "act_microseconds": round(cost, 1)})
        print(f"{label:<28} {cost:6.1f} microseconds")
    save("act_cost", {"env": "CartPole-v1", "machine": machine(), "entries": entries})


if __name__ == "__main__":
    main()
