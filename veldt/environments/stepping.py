# SPDX-License-Identifier: Apache-2.0
"""The code of a process that steps one environment for another process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import write_to_shared_memory

from veldt.environments.infos import EPISODE_INFO
from veldt.environments.parameters import Values
from veldt.environments.processes import Connection, die_with, ignore_signals, lead_group
from veldt.environments.resilience import AbortedEpisodes, EnvironmentFailure, ResilientEnvironment
from veldt.types import ACTION_MASK

_INFO_KEYS = ("final_info", "final_obs", ACTION_MASK, EPISODE_INFO)


@dataclass(frozen=True)
class Command:
    """What a worker is asked to do."""

    what: str
    data: Any = None
    options: dict[str, Any] | None = None

    @staticmethod
    def reset(seed: int | None, options: dict[str, Any]) -> Command:
        return Command("reset", seed, options)

    @staticmethod
    def step(action: Any) -> Command:
        return Command("step", action)

    @staticmethod
    def parameters(values: Values) -> Command:
        """The only one without an answer."""
        return Command("parameters", values)

    @staticmethod
    def render() -> Command:
        return Command("render")


CLOSE = Command("close")


@dataclass(frozen=True)
class Job:
    """All a worker is given."""

    make: Callable[[], ResilientEnvironment]
    number: int
    mode: AutoresetMode
    memory: Any
    """Where the observations of all copies lie."""
    seed: int | None = None
    times_rebuilt: int = 0
    """More than 0: a worker before this one died."""
    parameters: Values = field(default_factory=dict)

    def taken_over(self, seed: int | None, times_rebuilt: int) -> Job:
        return replace(self, seed=seed, times_rebuilt=times_rebuilt)


def run_worker(job: Job, pipe: Connection, lifeline: Connection) -> None:
    """Entry point. Answers: True once the environment is made, then one answer for each command; an
    exception is an answer too."""
    lead_group()
    ignore_signals()
    die_with(lifeline.fileno())
    try:
        _serve(job, pipe)
    except (EOFError, OSError):
        os._exit(0)  # the other process has gone
    except (Exception, SystemExit) as error:
        pipe.send(EnvironmentFailure(str(error)) if not _travels(error) else error)


def _travels(error: BaseException) -> bool:
    """Whether it comes out at the other end as what it is."""
    return isinstance(error, Exception) and type(error).__module__.startswith(
        ("gymnasium", "veldt")
    )


def _serve(job: Job, pipe: Connection) -> None:
    env = job.make()
    env.aborted = AbortedEpisodes()
    if job.times_rebuilt:
        env.take_over(job.seed, job.times_rebuilt)
    if job.parameters:
        env.pass_on(job.parameters)
    pipe.send(True)
    resets_next = job.times_rebuilt > 0 and job.mode == AutoresetMode.NEXT_STEP

    def show(observation: Any) -> None:
        write_to_shared_memory(env.observation_space, job.number, observation, job.memory)

    while True:
        command: Command = pipe.recv()
        if command.what == "close":
            env.close()
            return
        if command.what == "parameters":
            env.pass_on(command.data)
            continue
        if command.what == "render":
            pipe.send(env.render())
            continue
        if command.what == "reset" or resets_next:
            resets = command.what == "reset"
            seed = command.data if resets else None
            observation, info = env.reset(seed=seed, options=command.options or None)
            show(observation)
            info = _read_of(info)
            pipe.send(info if resets else (0.0, False, False, info, False))
            resets_next = False
            continue
        observation, reward, terminated, truncated, info = env.step(command.data)
        if terminated or truncated:
            resets_next = job.mode == AutoresetMode.NEXT_STEP
            if job.mode == AutoresetMode.SAME_STEP:
                first, first_info = env.reset()
                told = {"final_info": _read_of(info), "final_obs": observation}
                observation, info = first, {**first_info, **told}
        show(observation)
        aborted = bool(env.aborted.rows)
        env.aborted.rows.clear()
        pipe.send((float(reward), bool(terminated), bool(truncated), _read_of(info), aborted))


def _read_of(info: dict[str, Any]) -> dict[str, Any]:
    """The entries that somebody reads; others may be anything, and need not travel."""
    return {name: info[name] for name in _INFO_KEYS if name in info}
