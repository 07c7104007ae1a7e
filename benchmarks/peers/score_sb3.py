# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3 on one task of the scoreboard, by Veldt's rule for reaching a target.

Settings are rl-baselines3-zoo's; a task it does not have gets the algorithm's own defaults. So do
MinAtar's games, with the network of MinAtar's paper (ppo_defaults), and beside that the zoo's
settings for Atari with the same network (ppo): what is to be beaten is the better of the two. The
target is reached when 20 fresh greedy episodes have its mean: those played once 100 training
episodes have, or two rounds of those played every few seconds. The clock begins with the process;
the time that evaluations take is not counted here, since they hold up training in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import referee

_LOOKS_SHARE, _EPISODES_BETWEEN = 0.2, 100
_LEAST_BETWEEN_LOOKS_SECONDS = 0.5
Settings = dict[str, Any]


def zoo(algorithm: str, env: str) -> Settings:
    """The zoo's settings with schedules and functions in place of their names."""
    from torch import nn

    def alive(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("lin_"):
            start = float(value.removeprefix("lin_"))
            return lambda left: start * left
        return {"relu": nn.ReLU, "small_convolution": small_convolution}.get(str(value), value)

    with open(Path(__file__).with_name("sb3_zoo.toml"), "rb") as file:
        known = tomllib.load(file).get(algorithm, {})
    found: Settings = known.get(env) or known.get(env.partition("/")[0], {})
    own = {name: alive(value) for name, value in found.get("own", {}).items()}
    if "policy" in found:
        own["policy_kwargs"] = {name: alive(value) for name, value in found["policy"].items()}
    return {**found, "own": own}


def small_convolution(space: Any, **_: Any) -> Any:
    """MinAtar's own network up to the heads: 16 kernels of 3x3, then 128 units. Stable-Baselines3's
    convolutions do not fit on 10x10 pixels."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    class Small(BaseFeaturesExtractor):
        def __init__(self) -> None:
            super().__init__(space, 128)
            height, width, channels = space.shape
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 16, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(16 * (height - 2) * (width - 2), 128),
                nn.ReLU(),
            )

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.layers(rows.permute(0, 3, 1, 2))

    return Small()


class Judge:
    """Plays fresh episodes when they are due, and keeps a clock that stands still meanwhile."""

    def __init__(self, given: argparse.Namespace, play: Callable[[int], float]) -> None:
        self._given, self._play = given, play
        self._returns: deque[float] = deque(maxlen=referee.WINDOW)
        self._episodes, self._next_episode = 0, referee.WINDOW
        self._next_look, self._paused, self._rounds = 0.0, 0.0, 0
        self.evaluation: float | None = None
        self.seconds_to_target: float | None = None
        self.steps_to_target: int | None = None
        self.curve: list[tuple[float, int, float]] = []

    def seconds(self) -> float:
        return referee.since_process_start() - self._paused

    def finished(self, returns: list[float]) -> None:
        self._returns.extend(returns)
        self._episodes += len(returns)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self._returns) if self._returns else None

    def look(self, steps: int) -> None:
        """Play once, whatever comes of it."""
        self._round(steps, self.seconds())

    def goes_on(self, steps: int) -> bool:
        now, target = self.seconds(), self._given.target
        if self._given.steps:  # the score after so many is asked for, not how soon one is reached
            return now < self._given.max_seconds
        trained = len(self._returns) == referee.WINDOW and (self.mean or 0.0) >= target
        reached = False
        if trained and self._episodes >= self._next_episode:
            self._next_episode = self._episodes + _EPISODES_BETWEEN
            reached = self._round(steps, now)
        elif now >= self._next_look and steps > self._given.first_steps:
            before = self._paused
            reached = self._round(steps, now) and self._round(steps, now)
            spent = self._paused - before
            self._next_look = now + max(_LEAST_BETWEEN_LOOKS_SECONDS, spent / _LOOKS_SHARE)
        if reached:
            self.seconds_to_target, self.steps_to_target = now, steps
        return not reached and now < self._given.max_seconds

    def _round(self, steps: int, now: float) -> bool:
        began = time.monotonic()
        self._rounds += 1
        self.evaluation = self._play(10_000_000 * (self._given.seed + 1) + 1_000 * self._rounds)
        self._paused += time.monotonic() - began
        self.curve.append((round(now, 2), steps, self.evaluation))
        return self._given.target is not None and self.evaluation >= self._given.target


def player(env: str, model: Any, normalizer: Any) -> Callable[[int], float]:
    import gymnasium
    import numpy as np

    def play(seed: int) -> float:
        environments = [gymnasium.make(env) for _ in range(referee.EVALUATION_EPISODES)]
        rows = [each.reset(seed=seed + k)[0] for k, each in enumerate(environments)]
        returns, alive = np.zeros(len(rows)), list(range(len(rows)))
        for _ in range(10_000):
            batch = np.stack([rows[k] for k in alive])
            if normalizer is not None:
                batch = normalizer.normalize_obs(batch)
            actions = model().predict(batch, deterministic=True)[0]
            going = []
            for k, action in zip(alive, actions, strict=True):
                rows[k], reward, terminated, truncated, _ = environments[k].step(action)
                returns[k] += float(reward)
                if not (terminated or truncated):
                    going.append(k)
            alive = going
            if not alive:
                break
        return float(returns.mean())

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algorithm", choices=("ppo", "ppo_defaults", "sac", "dqn"))
    parser.add_argument("--env", required=True)
    parser.add_argument("--target", type=float)
    parser.add_argument("--steps", type=int, default=0, help="train so long, then play")
    parser.add_argument("--max-seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first-steps", type=int, default=500, help="before the first look")
    given = parser.parse_args()

    import torch
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    if given.env.startswith("MinAtar/"):  # Gymnasium no longer looks for plugins
        import minatar.gym

        minatar.gym.register_envs()
    settings = zoo(given.algorithm, given.env)
    environment: Any = make_vec_env(given.env, settings.get("n_envs", 1), seed=given.seed)
    normalizer = None
    if settings.get("normalize"):
        environment = normalizer = VecNormalize(environment)
    kind = {"ppo": PPO, "sac": SAC, "dqn": DQN}[given.algorithm.removesuffix("_defaults")]
    model = kind("MlpPolicy", environment, seed=given.seed, device="cpu", **settings["own"])
    judge = Judge(given, player(given.env, lambda: model, normalizer))

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            infos = self.locals["infos"]
            judge.finished([float(info["episode"]["r"]) for info in infos if "episode" in info])
            return judge.goes_on(self.num_timesteps)

    model.learn(given.steps or settings.get("total", 1_000_000), callback=Watch())
    if given.steps:
        judge.look(model.num_timesteps)
    report = {
        "reached": judge.seconds_to_target is not None,
        "seconds_to_target": judge.seconds_to_target,
        "env_steps_to_target": judge.steps_to_target,
        "evaluation_return": judge.evaluation,
        "mean_return_100": judge.mean,
        "env_steps": model.num_timesteps,
        "wall_seconds": judge.seconds(),
        "curve": judge.curve[-30:],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
