# SPDX-License-Identifier: Apache-2.0
"""What the environments alone can do: random actions in N processes at once, nothing else running.

python benchmarks/env_ceiling.py --env ALE/Pong-v5 --processes 16 --envs 32 --seconds 10
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

import numpy as np

from veldt.environments import EnvironmentFactory


def _step(factory: EnvironmentFactory, envs: int, seconds: float, seed: int, out: object) -> None:
    environment = factory.make(envs, seed)
    environment.reset()
    random = np.random.default_rng(seed)
    actions = [environment.random_actions(random) for _ in range(64)]
    for action in actions:
        environment.step(action)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        steps += environment.step(actions[steps % 64]).env_steps
    out.put(steps / (time.perf_counter() - began))  # type: ignore[attr-defined]


def ceiling(env: str, processes: int, envs: int, seconds: float) -> float:
    """Env steps per second of all processes together."""
    context = multiprocessing.get_context("forkserver")
    factory, out = EnvironmentFactory(env), context.Queue()
    factory.spec()
    running = [
        context.Process(target=_step, args=(factory, envs, seconds, seed, out))
        for seed in range(processes)
    ]
    for process in running:
        process.start()
    rates = [out.get() for _ in running]
    for process in running:
        process.join()
    return sum(rates)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    rate = ceiling(given.env, given.processes, given.envs, given.seconds)
    print(json.dumps({**vars(given), "env_steps_per_second": rate}))
