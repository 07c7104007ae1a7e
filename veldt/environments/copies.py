# SPDX-License-Identifier: Apache-2.0
"""Copies of a Python environment in this process, which are rebuilt if they fail.

The episode of a copy that fails is truncated and counted as aborted instead of as a result. An
environment that keeps failing stops the run, and the error names it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from veldt.environments.spaces import cleared, is_finite
from veldt.environments.vector import ABORTED, EPISODE_INFO, numbers_of
from veldt.errors import text_of
from veldt.types import ACTION_MASK

_MOST_FAILURES = 10
_MISUSE = (gymnasium.error.InvalidAction, gymnasium.error.ResetNeeded)  # the caller's mistakes
_STEP_VALUES, _RESET_VALUES = 5, 2
_HEALTHY_STEPS = 20  # between two failures, after which the count restarts
_SEED_STRIDE, _SEEDS = 1_000_003, 2**31 - 1

_log = logging.getLogger(__name__)
_reported: set[str] = set()  # only the first failure of a process is logged


class EnvironmentFailure(RuntimeError):  # noqa: N818 - it reads as what it is in a trace
    """An environment keeps failing; the message names it."""


class MalformedError(ValueError):
    """An environment returned something that Gymnasium's interface does not allow."""


class ResilientEnvironment(gymnasium.Wrapper):
    """Copy `number` of an environment, which is rebuilt when it fails.

    Exceptions, and rewards or observations that are not finite, truncate the episode at its last
    valid observation. The info then has the entry ABORTED."""

    def __init__(self, make: Callable[[], gymnasium.Env], name: str, number: int = 0) -> None:
        super().__init__(make())
        self._make, self._name = make, name
        self._what = f"the environment '{name}' (copy {number})"
        self._failures = self._healthy_steps = self._times_rebuilt = 0
        self._last: tuple[Any, dict[str, Any]] = (None, {})
        self._space = self.env.observation_space
        self._was_stepped = False
        self._seed: int | None = None
        self._next_seed: int | None = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            answer = self.env.step(action)
            if len(answer) != _STEP_VALUES:
                raise MalformedError(
                    f"step() returned {len(answer)} values instead of 5 (observation, reward,"
                    " terminated, truncated, info)"
                )
            observation, reward, terminated, truncated, info = answer
            self._check("step()", observation, info)
            if not (math.isfinite(reward) and is_finite(observation)):
                raise FloatingPointError("its reward or observation is not finite")
        except _MISUSE:
            raise
        except (Exception, SystemExit) as error:
            self._rebuild(error)
            observation, info = self._last
            if not is_finite(observation):  # an environment may reuse its arrays
                observation = cleared(observation)
            return observation, 0.0, False, True, {ABORTED: True, **_entries_read(info, False)}
        self._last = observation, info
        self._was_stepped = True
        self._healthy_steps += 1
        info = _entries_read(info, bool(terminated or truncated))
        return observation, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed = self._next_seed = seed
        while True:
            try:
                answer = self.env.reset(seed=self._next_seed, options=options)
                if not isinstance(answer, tuple) or len(answer) != _RESET_VALUES:
                    raise MalformedError("reset() did not return two values (observation, info)")
                self._check("reset()", *answer)
                if not is_finite(answer[0]):
                    raise FloatingPointError("its first observation is not finite")
                break
            except (Exception, SystemExit) as error:
                self._rebuild(error)
        self._next_seed, self._last = None, answer
        return answer[0], _entries_read(answer[1], False)

    def _check(self, method: str, observation: Any, info: Any) -> None:
        if not _fits(self._space, observation):
            raise MalformedError(f"{method} returned {_misfit(self._space, observation)}")
        if not isinstance(info, dict):
            raise MalformedError(f"{method} returned {info!r:.100} as info; return a dict")

    def _rebuild(self, error: BaseException) -> None:
        """Replace the environment that raised `error`, if it may still be replaced."""
        if isinstance(error, MalformedError) and not self._was_stepped:
            raise EnvironmentFailure(f"the environment '{self._name}': {error}") from error
        if self._healthy_steps >= _HEALTHY_STEPS:
            self._failures = 0
        self._failures += 1
        self._healthy_steps = 0
        if self._failures >= _MOST_FAILURES:
            raise EnvironmentFailure(
                f"{self._what} failed {self._failures} times in a row, last with"
                f" {error_text(error)}"
            ) from error
        if self._what not in _reported:
            _reported.add(self._what)
            _log.warning("%s is rebuilt and its episode aborted: %s", self._what, error_text(error))
        with contextlib.suppress(Exception, SystemExit):
            self.env.close()
        try:
            self.env = self._make()
        except (Exception, SystemExit) as another:
            return self._rebuild(another)
        self._times_rebuilt += 1
        if self._seed is not None:  # another one, in case that fails, but the same in every run
            self._next_seed = (self._seed + _SEED_STRIDE * self._times_rebuilt) % _SEEDS


def _entries_read(info: dict[str, Any], ended: bool) -> dict[str, Any]:
    """The entries that are read; others may be of any type, which a process could not send."""
    found = {ACTION_MASK: info[ACTION_MASK]} if ACTION_MASK in info else {}
    if ended and (numbers := numbers_of(info)):
        found[EPISODE_INFO] = numbers
    return found


class InProcessVector(SyncVectorEnv):
    """Copies that are stepped one after the other, with their infos collected by row."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], name: str) -> None:
        copies = [
            functools.partial(ResilientEnvironment, make, name, number)
            for number, make in enumerate(makers)
        ]
        super().__init__(copies, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        if ACTION_MASK in env_info:
            super()._add_info(vector_infos, {ACTION_MASK: env_info[ACTION_MASK]}, env_num)
        if EPISODE_INFO in env_info:
            vector_infos.setdefault(EPISODE_INFO, {})[env_num] = env_info[EPISODE_INFO]
        if ABORTED in env_info:
            vector_infos.setdefault(ABORTED, []).append(env_num)
        return vector_infos


def error_text(error: BaseException) -> str:
    """The error and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}){where}"
    return f"{type(error).__name__}: {' '.join(text_of(error).split())}{where}"


def _fits(space: gymnasium.Space, value: Any) -> bool:
    """Whether an observation has the shape of its space; cheap enough for every step."""
    if isinstance(space, spaces.Dict):
        return isinstance(value, Mapping) and all(
            name in value and _fits(entry, value[name]) for name, entry in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        entries = space.spaces
        is_long_enough = isinstance(value, tuple | list) and len(value) == len(entries)
        return is_long_enough and all(map(_fits, entries, value))
    return value is not None if space.shape is None else _shape(value) == space.shape


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array of numbers, or of what NumPy makes one of; None for anything else."""
    try:
        array = value if type(value) is np.ndarray else np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return None if array.dtype.kind == "O" else array.shape


def _misfit(space: gymnasium.Space, value: Any, entry: str = "") -> str:
    """The first entry that does not fit its space, in words."""
    parts: Mapping[Any, gymnasium.Space] = {}
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple) and isinstance(value, tuple | list):
        parts = dict(zip(range(len(value)), space.spaces, strict=False))
    for name, part in parts.items():
        inner = f"{entry}[{name!r}]"
        if isinstance(value, Mapping) and name not in value:
            return f"no observation{inner} where its observation space is {part}"
        if not _fits(part, value[name]):
            return _misfit(part, value[name], inner)
    shape = _shape(value)
    kind = f"type {type(value).__name__}" if shape is None else f"shape {shape}"
    return f"an observation{entry} of {kind} where its observation space is {space}"
