# SPDX-License-Identifier: Apache-2.0
"""What the environments alone can do: random actions in N processes at once, nothing else running.

python benchmarks/env_ceiling.py --env ALE/Pong-v5 --processes 16 --envs 32 --seconds 10
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np

from veldt.environments import EnvironmentFactory

_SET_OUT_SECONDS = 0.5


def _step(factory: EnvironmentFactory, envs: int, seed: int, counts: Any) -> None:
    """Two groups of environments that take turns where they can, as an actor's do: faster than one
    that waits for its own answers."""
    groups = factory.make_groups(2, envs, seed) or [factory.make(envs, seed)]
    groups[0].reset()
    random = np.random.default_rng(seed)
    actions = [groups[0].random_actions(random) for _ in range(64)]
    for turn in itertools.count():
        groups[turn % len(groups)].send(actions[turn % 64])
        following = groups[(turn + 1) % len(groups)]
        if turn + 1 < len(groups):
            following.reset()
        else:
            counts[seed] += following.receive().env_steps


class Steppers:
    """Processes that step environments and do nothing else, and can be paused."""

    def __init__(self, env: str, processes: int, envs: int) -> None:
        context = multiprocessing.get_context("forkserver")
        factory, self._counts = EnvironmentFactory(env), context.RawArray("q", processes)
        factory.spec()
        self._running = [
            context.Process(target=_step, args=(factory, envs, seed, self._counts), daemon=True)
            for seed in range(processes)
        ]
        for process in self._running:
            process.start()
        while not all(self._counts):
            time.sleep(0.1)

    def rate(self, seconds: float) -> float:
        """Env steps per second of all processes together."""
        time.sleep(_SET_OUT_SECONDS)
        before, began = sum(self._counts), time.perf_counter()
        time.sleep(seconds)
        return (sum(self._counts) - before) / (time.perf_counter() - began)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._running:
            process.join()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            assert process.pid is not None
            os.kill(process.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    steppers = Steppers(given.env, given.processes, given.envs)
    rate = steppers.rate(given.seconds)
    steppers.close()
    print(json.dumps({**vars(given), "env_steps_per_second": rate}))


if __name__ == "__main__":
    main()
