# SPDX-License-Identifier: Apache-2.0
"""Environments that take their time: any other environment, slowed down by sleeping.

Sleeping costs no core, so that a small machine can show what many machines would do: "veldt:
sleeping?step_ms=1" and "veldt:straggling?probability=0.01,straggle_ms=50". The environments of one
actor step at the same time, as simulators elsewhere would, and the slowest is waited for.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from veldt.environments.opened import Stepper
from veldt.errors import ConfigurationError, did_you_mean
from veldt.options.checked import Bounds, Fraction, Options

DELAYED_PREFIX = "veldt:"
_DELAYS = 0xDE1A  # tells the stream of delays from the other streams of a seed
Milliseconds = Annotated[float, Bounds(0, 60_000)]


@dataclass(frozen=True)
class Sleeping(Options):
    """Every step takes `step_ms` milliseconds longer than one of `base` does."""

    base: str = "CartPole-v1"
    step_ms: Milliseconds = 1.0

    def longest_seconds(self, num_envs: int, random: np.random.Generator) -> float:
        """How long the slowest of so many environments sleeps in one step."""
        return self.step_ms / 1e3


@dataclass(frozen=True)
class Straggling(Sleeping):
    """With `probability`, one environment's step takes `straggle_ms` milliseconds more."""

    step_ms: Milliseconds = 0.0
    probability: Fraction = 0.01
    straggle_ms: Milliseconds = 50.0

    def longest_seconds(self, num_envs: int, random: np.random.Generator) -> float:
        any_straggles = random.random() >= (1.0 - self.probability) ** num_envs
        return (self.step_ms + self.straggle_ms * any_straggles) / 1e3


_KINDS: dict[str, type[Sleeping]] = {"sleeping": Sleeping, "straggling": Straggling}


def is_delayed(name: str) -> bool:
    """Whether this is such an environment, and not a game of several players."""
    kind, has_settings, _ = name.removeprefix(DELAYED_PREFIX).partition("?")
    return name.startswith(DELAYED_PREFIX) and (bool(has_settings) or kind in _KINDS)


def delay_of(name: str) -> Sleeping:
    """What "veldt:<kind>?<name>=<value>,..." asks for, checked."""
    kind, _, settings = name.removeprefix(DELAYED_PREFIX).partition("?")
    if kind not in _KINDS:
        remedy = did_you_mean(kind, _KINDS)
        raise ConfigurationError(f"unknown environment '{name}'; {remedy}")
    known = {entry.name for entry in fields(_KINDS[kind])}
    given: dict[str, Any] = {}
    for setting in re.split("[,&]", settings) if settings else []:
        key, equals, value = setting.partition("=")
        if key not in known or not equals:
            remedy = did_you_mean(key, sorted(known))
            raise ConfigurationError(f"'{setting}' of '{name}' is no setting; {remedy}")
        given[key] = value if key == "base" else _number(name, key, value)
    try:
        return _KINDS[kind](**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"of the environment '{name}', {error}") from error


def _number(name: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(
            f"{key} of the environment '{name}' is '{value}'; use a number"
        ) from None


class DelayedVector(VectorWrapper):
    """A vector environment whose steps take as long as `delay` says."""

    def __init__(self, env: VectorEnv, delay: Sleeping, seed: int) -> None:
        super().__init__(env)
        self._delay, self._random = delay, np.random.default_rng([seed, _DELAYS])

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        time.sleep(self.longest_seconds())
        return self.env.step(actions)

    def longest_seconds(self) -> float:
        return self._delay.longest_seconds(self.num_envs, self._random)


class DelayedStepper:
    """The same for environments that step in two halves; they sleep from `send` on."""

    def __init__(self, stepper: Stepper, vector: DelayedVector) -> None:
        self._stepper, self._vector = stepper, vector
        self._ready = 0.0

    def send(self, actions: np.ndarray) -> None:
        self._ready = time.perf_counter() + self._vector.longest_seconds()
        self._stepper.send(actions)

    def recv(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        result = self._stepper.recv()
        time.sleep(max(0.0, self._ready - time.perf_counter()))
        return result
