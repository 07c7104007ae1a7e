# SPDX-License-Identifier: Apache-2.0
"""Sample Factory on one GPU: trained steps/s as a share of what the environments alone can do.

python benchmarks/sample_factory_gpu.py --env ALE/Pong-v5 --network resnet --num-actors 14

The ceiling (every core stepping with random actions, nothing else running) is measured before and
after the training run, because lent machines change their pace; the ratio is to the mean of both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import measuring
from env_ceiling import ceiling


class Usage:
    """Samples the use of all cores and of the GPU while something else runs."""

    def __init__(self, period_seconds: float = 1.0) -> None:
        self._period, self._over = period_seconds, threading.Event()
        self._cpu: list[float] = []
        self._gpu: list[float] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def shares(self, last_seconds: float) -> dict[str, float]:
        """Mean use, 0 to 1, over the last part, when the run was in steady state."""
        count = max(1, int(last_seconds / self._period))
        return {
            name: sum(values[-count:]) / max(1, len(values[-count:]))
            for name, values in (("cpu", self._cpu), ("gpu", self._gpu))
        }

    def _watch(self) -> None:
        before = _cpu_times()
        while not self._over.wait(self._period):
            now = _cpu_times()
            busy, total = now[0] - before[0], now[1] - before[1]
            before = now
            self._cpu.append(busy / total if total else 0.0)
            self._gpu.append(_gpu_share())


def _cpu_times() -> tuple[int, int]:
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def _gpu_share() -> float:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0.0
    return float(answer.split()[0]) / 100


def measure(arguments: argparse.Namespace, own: list[str]) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    width = arguments.envs_per_actor // 2

    def alone() -> float:
        return ceiling(arguments.env, cores, width, arguments.ceiling_seconds)

    before = alone()
    with Usage() as usage:
        training = measuring.train(
            "sample_factory",
            arguments.seconds + 120,
            env=arguments.env,
            network=arguments.network,
            num_actors=arguments.num_actors,
            envs_per_actor=arguments.envs_per_actor,
            max_seconds=arguments.seconds,
            evaluation_episodes=0,
            **dict(zip([flag[2:] for flag in own[::2]], own[1::2], strict=True)),
        )
    shares = usage.shares(arguments.seconds / 2)
    after = alone()
    most = (before + after) / 2
    return {
        "settings": {**vars(arguments), "own": own},
        "ceiling_before": before,
        "ceiling_after": after,
        "trained_steps_per_second": training.trained_steps_per_second,
        "ratio_to_ceiling": training.trained_steps_per_second / most,
        "cpu_share": shares["cpu"],
        "gpu_share": shares["gpu"],
        "stage_shares": training.result["stage_shares"],
        "policy_lag": training.result["policy_lag"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--network", default="resnet")
    parser.add_argument("--num-actors", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--envs-per-actor", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--ceiling-seconds", type=float, default=8.0)
    parser.add_argument("--name", default="sample_factory_gpu")
    arguments, own = parser.parse_known_args()
    began = time.perf_counter()
    entry = measure(arguments, own)
    entry["seconds"] = time.perf_counter() - began
    path = measuring.save(arguments.name, {"machine": measuring.machine(), **entry})
    header = ("", "ceiling", "trained steps/s", "of ceiling", "cpu", "gpu")
    most = (entry["ceiling_before"] + entry["ceiling_after"]) / 2
    row = (arguments.env, most, entry["trained_steps_per_second"], entry["ratio_to_ceiling"])
    measuring.print_table(header, [(*row, entry["cpu_share"], entry["gpu_share"])])
    for role, shares in entry["stage_shares"].items():
        print(f"  {role}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
    print(path.relative_to(measuring.ROOT))


if __name__ == "__main__":
    main()
