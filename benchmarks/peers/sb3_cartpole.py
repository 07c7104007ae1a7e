# SPDX-License-Identifier: Apache-2.0
"""One Stable-Baselines3 run on CartPole-v1 with rl-zoo's settings; run in its own environment.

Prints one JSON line: seconds from process start to the first env step, trained steps/s, and seconds
to a mean training return of 475, as it is first crossed and as 20 greedy episodes confirm it.
"""

import argparse
import json
import os
import time
from pathlib import Path

TARGET, WINDOW, EVALUATION_EPISODES, NUM_ENVS, WARM_UP_SECONDS = 475.0, 100, 20, 8, 3.0


def since_process_start() -> float:
    """Seconds since the kernel started this process: importing libraries is part of the wait."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def settings(algorithm: str) -> tuple[dict, int]:
    """rl-baselines3-zoo's hyperparameters for CartPole-v1 and the length of its schedules."""
    if algorithm == "a2c":
        return {"ent_coef": 0.0}, 500_000
    ppo = {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "ent_coef": 0.0,
        "learning_rate": lambda left: 0.001 * left,
        "clip_range": lambda left: 0.2 * left,
    }
    return ppo, 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=("a2c", "ppo"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=60.0)
    parser.add_argument("--stop-at-target", action="store_true")
    arguments = parser.parse_args()

    import numpy as np
    import torch
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)

    class Watch(BaseCallback):
        """Looks at the clock after each env step and at each start of a rollout."""

        def __init__(self) -> None:
            super().__init__()
            self.start = self.crossed = self.confirmed = self.evaluation = None
            self.episodes, self.next_evaluation = 0, WINDOW
            self.marks: list[tuple[float, int]] = []

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:  # all of them have been trained on
                self.marks.append((time.perf_counter(), self.num_timesteps))

        def _on_step(self) -> bool:
            if self.start is None:
                self.start = since_process_start()
            finished = int(np.count_nonzero(self.locals["dones"]))
            self.episodes += finished
            if finished and self.confirmed is None:
                self._compare()
            done = arguments.stop_at_target and self.confirmed is not None
            return not done and since_process_start() < arguments.max_seconds

        def _compare(self) -> None:
            returns = [entry["r"] for entry in self.model.ep_info_buffer]
            if len(returns) < WINDOW or np.mean(returns) < TARGET:
                return
            self.crossed = self.crossed or since_process_start()
            if not arguments.stop_at_target or self.episodes < self.next_evaluation:
                return
            self.next_evaluation = self.episodes + WINDOW
            fresh = make_vec_env("CartPole-v1", EVALUATION_EPISODES, seed=10_000 + self.episodes)
            self.evaluation, _ = evaluate_policy(self.model, fresh, EVALUATION_EPISODES)
            if self.evaluation >= TARGET:
                self.confirmed = since_process_start()

        def rate(self) -> float | None:
            settled = [mark for mark in self.marks if mark[0] > self.marks[0][0] + WARM_UP_SECONDS]
            if len(settled) < 2:
                return None
            (begun, before), (ended, after) = settled[0], settled[-1]
            return (after - before) / (ended - begun)

    options, total = settings(arguments.algorithm)
    kind, watch = (A2C if arguments.algorithm == "a2c" else PPO), Watch()
    environment = make_vec_env("CartPole-v1", NUM_ENVS, seed=arguments.seed)
    model = kind("MlpPolicy", environment, seed=arguments.seed, device="cpu", **options)
    model.learn(total, callback=watch)
    report = {
        "start_seconds": watch.start,
        "steps_per_second": watch.rate(),
        "seconds_to_crossing": watch.crossed,
        "seconds_to_target": watch.confirmed,
        "evaluation_return": watch.evaluation,
        "env_steps": model.num_timesteps,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
