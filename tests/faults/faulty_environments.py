# SPDX-License-Identifier: Apache-2.0
"""Environments that fail on purpose."""

import contextlib
import os
import resource
import subprocess
import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Faulty(gymnasium.Env):
    """Observes [episode, step]; every episode lasts 10 steps and every step pays 1.

    `fault` says what happens at step `at` of every episode, or of every `nth` environment made:
    "raise", "nan_reward", "inf_observation", or "raise_in_reset"."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, fault: str = "none", at: int = 3, nth: int = 1) -> None:
        self._fault = fault if Faulty.made % nth == 0 else "none"
        Faulty.made += 1
        self._at, self._episode, self._count = at, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self._fault == "raise_in_reset":
            raise RuntimeError("the robot does not stand up")
        self._episode += 1
        self._count = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._count += 1
        observation, reward = self._observation(), 1.0
        if self._count == self._at:
            if self._fault == "raise":
                raise RuntimeError("the joint is stuck")
            if self._fault == "nan_reward":
                reward = float("nan")
            if self._fault == "inf_observation":
                observation[1] = np.inf
        return observation, reward, self._count == 10, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._episode, self._count], np.float32)


def raising(**options: Any) -> Faulty:
    return Faulty("raise", **options)


def rarely_raising() -> Faulty:
    """The first of five that are made raises late in every episode; the others are sound."""
    return Faulty("raise", at=9, nth=5)


def never_resetting() -> Faulty:
    return Faulty("raise_in_reset")


class NativeNan(VectorEnv):
    """A native vector whose first environment pays NaN in every `period`-th step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, period: int = 50) -> None:
        self.num_envs, self._period = num_envs, period
        self.single_observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self._steps += 1
        observation, reward = np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs)
        if self._steps % self._period == 0:
            reward[0], observation[0, 1] = np.nan, np.inf
        over = np.full(self.num_envs, self._steps % 11 == 10)
        return observation, reward, over, np.zeros(self.num_envs, bool), {}


def always_nan(num_envs: int) -> NativeNan:
    return NativeNan(num_envs, period=1)


class SlowReset(Faulty):
    """Takes half a minute to reset."""

    def reset(self, **settings: Any) -> tuple[np.ndarray, dict[str, Any]]:
        time.sleep(30.0)
        return super().reset(**settings)


class LateSlowReset(Faulty):
    """Takes half a minute for every reset but its first."""

    def reset(self, **settings: Any) -> tuple[np.ndarray, dict[str, Any]]:
        if self._episode >= 0:
            time.sleep(30.0)
        return super().reset(**settings)


class Hoarding(Faulty):
    """The first in its third episode takes every descriptor that its process may have."""

    _kept: tuple[int, ...] = ()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._episode == 2 and self._count == 0:
            with contextlib.suppress(OSError):
                os.mkdir("hoards")
                resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
                while True:
                    self._kept += (os.open("/dev/null", os.O_RDONLY),)
        return super().step(action)


class WithProgram(Faulty):
    """Starts a program of its own, as simulators do."""

    def __init__(self) -> None:
        super().__init__()
        self._program = subprocess.Popen(["sleep", "600"])

    def close(self) -> None:
        self._program.kill()
        self._program.wait()


class Spinning(Faulty):
    """Never returns from its 200th step, and reads nothing meanwhile; a file says that it spins."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps = getattr(self, "_steps", 0) + 1
        if self._steps == 200:
            with open(f"spins-{os.getpid()}", "x", encoding="ascii"):
                pass
        while self._steps >= 200:
            pass
        return super().step(action)


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def unspeakable_factory():
    raise SpeechlessError


def raising_factory() -> Faulty:
    raise FileNotFoundError("no such robot: /dev/robot0")


class OldStep(Faulty):
    """Gym's interface before 2022."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class WrongShape(Faulty):
    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return (np.zeros(5, np.float32), *rest)


class WrongEntry(Faulty):
    observation_space = spaces.Dict(speed=spaces.Box(-1.0, 1.0, (3,), np.float32))

    def reset(self, **_: Any) -> Any:
        return {"speed": np.zeros(2, np.float32)}, {}


class Rude(Faulty):
    """Prints, and works in a folder of its own."""

    def __init__(self) -> None:
        super().__init__()
        os.chdir(tempfile.gettempdir())

    def step(self, action: Any) -> Any:
        print("debug: step")
        return super().step(action)


class Wider(Faulty):
    """As wide as the file beside the run says."""

    def __init__(self) -> None:
        super().__init__()
        with open("width.txt", encoding="ascii") as file:
            self._width = int(file.read())
        self.observation_space = spaces.Box(-np.inf, np.inf, (self._width,), np.float32)

    def _observation(self) -> np.ndarray:
        return np.zeros(self._width, np.float32)


class _Leisurely(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        time.sleep(0.0005)
        return self.env.step(action)


def leisurely_cart_pole(**options: Any) -> gymnasium.Env:
    """CartPole that takes its time, so that a short run lasts a while."""
    return _Leisurely(gymnasium.make("CartPole-v1", **options))


def in_processes(num_envs, seconds=0):
    copies = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    made = AsyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP)
    time.sleep(seconds * (num_envs - 1))
    return made
