# SPDX-License-Identifier: Apache-2.0
"""What the framework costs: trained steps/s of `veldt train impala` over those of bare_impala.py.

Both run the same environments, trajectories, batch, network, V-trace and Adam in one actor and one
learner process. Runs alternate, so that a slow minute of the machine hits both; medians count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import bare_impala
import measuring

TARGET_RATIO = 0.85
SETTINGS: dict[str, object] = {  # what bare_impala.py does, whatever the preset says
    "num_actors": 1,
    "batch_trajectories": 1,
    "queue_trajectories": bare_impala.NUM_BUFFERS,
    "gamma": bare_impala.GAMMA,
    "learning_rate": bare_impala.LEARNING_RATE,
    "max_grad_norm": bare_impala.MAX_GRAD_NORM,
    "loss_options": {
        "value_coefficient": bare_impala.VALUE_COEFFICIENT,
        "normalize_returns": False,
    },
    "entropy_coefficient": bare_impala.ENTROPY_COEFFICIENT,
    "trace_lambda": 1.0,
}
_WARM_UP_SECONDS, _START_SECONDS = 3.0, 3.0


def bare(envs: int, steps: int, seconds: float) -> float:
    command = [sys.executable, str(measuring.ROOT / "benchmarks" / "bare_impala.py")]
    command += ["--envs", str(envs), "--steps", str(steps), "--seconds", str(seconds)]
    command += ["--warm-up-seconds", str(_WARM_UP_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(json.loads(done.stdout)["steps_per_second"])


def framework(envs: int, steps: int, seconds: float) -> float:
    training = measuring.train(
        "impala",
        300,
        env="CartPole-v1",
        backend="process",
        envs_per_actor=envs,
        trajectory_steps=steps,
        **SETTINGS,
        max_seconds=_START_SECONDS + _WARM_UP_SECONDS + seconds,
        evaluation_episodes=0,
    )
    return training.trained_steps_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=20, help="length of a trajectory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured per run")
    arguments = parser.parse_args()
    machine, entries = measuring.machine(), []
    for envs in arguments.envs:
        runs: dict[str, list[float]] = {"bare": [], "veldt": []}
        for _ in range(arguments.rounds):
            runs["bare"].append(bare(envs, arguments.steps, arguments.seconds))
            runs["veldt"].append(framework(envs, arguments.steps, arguments.seconds))
            print(f"{envs} envs: bare {runs['bare'][-1]:,.0f}, veldt {runs['veldt'][-1]:,.0f}/s")
        medians = {name: measuring.median(rates) for name, rates in runs.items()}
        ratio = medians["veldt"] / medians["bare"]
        entries.append({"envs": envs, "steps": arguments.steps, "ratio": ratio, **medians})
        entries[-1]["runs"] = runs
    payload = {"machine": machine, "target_ratio": TARGET_RATIO, "entries": entries}
    path = measuring.save("abstraction_cost", payload)
    rows = [(entry["envs"], entry["bare"], entry["veldt"], entry["ratio"]) for entry in entries]
    measuring.print_table(("envs", "bare steps/s", "veldt steps/s", "ratio"), rows)
    print(f"target ratio: {TARGET_RATIO} or more; written to {path.relative_to(measuring.ROOT)}")


if __name__ == "__main__":
    main()
