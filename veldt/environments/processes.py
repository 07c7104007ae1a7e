# SPDX-License-Identifier: Apache-2.0
"""Environments in worker processes, and how a process ends together with its children.

Backends start the processes of a run. Environments are the exception, because any process may step
them: an actor, the plan that measures them, or `veldt evaluate`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorWrapper

from veldt.environments.parameters import Values
from veldt.environments.resilience import Copies, Failures, ResilientEnvironment
from veldt.environments.vector import ABORTED, EPISODE_INFO
from veldt.types import ACTION_MASK

_MARK = "veldt-"
_CLOSE_SECONDS = 2.0
_EXIT_CODE_SECONDS = 1.0
_DEAD = (EOFError, OSError, gymnasium.error.AlreadyPendingCallError)
"""What Gymnasium raises when a process of its vector has ended, at once or in the next call."""


class _Workers(Copies, AsyncVectorEnv):
    """Copies in a process each, which end with this process, however it ends."""

    def __init__(
        self, make: Callable[[], gymnasium.Env], name: str, num_envs: int, mode: AutoresetMode
    ) -> None:
        self.processes = []
        copies = [
            functools.partial(_make_in_worker, os.getpid(), make, name, number)
            for number in range(num_envs)
        ]
        try:
            super().__init__(
                copies, copy=False, context="forkserver", daemon=False, autoreset_mode=mode
            )
        finally:
            self._end = weakref.finalize(self, end_groups, self.processes, 0.0)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        for pipe in self.parent_pipes:
            with contextlib.suppress(OSError, AttributeError):
                pipe.send(("close", None))
        end_groups(self.processes, _CLOSE_SECONDS)
        self._end.detach()

    def cause_of_death(self) -> str:
        connection.wait([each.sentinel for each in self.processes], _EXIT_CODE_SECONDS)
        code = next((each.exitcode for each in self.processes if each.exitcode is not None), 0)
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class SubprocessVector(VectorWrapper):
    """Copies of one environment that step at the same time, each in a process of its own.

    When one of the processes dies, all are replaced and their episodes are aborted."""

    env: _Workers

    def __init__(
        self, make: Callable[[], gymnasium.Env], name: str, num_envs: int, mode: AutoresetMode
    ) -> None:
        self._make = functools.partial(_Workers, make, name, num_envs, mode)
        self._failures = Failures(f"the environment '{name}' (in {num_envs} processes)")
        self._parameters: Values = {}
        self._resets_next = False
        super().__init__(self._make())
        claim(Path(get_temp_dir()))

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._resets_next = False
        while True:
            try:
                return self.env.reset(seed=seed, options=options)
            except _DEAD as error:
                self._replace(error)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards, no = np.zeros(self.num_envs), np.zeros(self.num_envs, bool)
        if self._resets_next:
            observations, infos = self.reset()
            return observations, rewards, no, no, infos
        try:
            answer = self.env.step(actions)
        except _DEAD as error:
            last: Any = self.env.observations
            self._replace(error)
        else:
            self._failures.succeeded()
            return answer
        infos = {ABORTED: list(range(self.num_envs))}
        self._resets_next = self.env.autoreset_mode == AutoresetMode.NEXT_STEP
        if self.env.autoreset_mode == AutoresetMode.SAME_STEP:
            infos["final_obs"] = last
            last, first = self.reset()
            infos |= first
        return last, rewards, no, ~no, infos

    def pass_on(self, values: Values) -> None:
        """Set parameters of each copy before its next episode begins."""
        self._parameters = values
        try:
            self.env.pass_on(values)
        except _DEAD:
            end_groups(self.env.processes, 0.0)  # the next step replaces them

    def _replace(self, error: BaseException) -> None:
        """Start all processes again."""
        died = RuntimeError(f"a process that ended with {self.env.cause_of_death()}")
        died.__cause__ = error
        self._failures.count(died)
        end_groups(self.env.processes, 0.0)
        self.env = self._make()
        if self._parameters:
            self.env.pass_on(self._parameters)


class _WorkerCopy(ResilientEnvironment):
    """A copy whose info has only the entries that are read; others may be of any type."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**arguments)
        return observation, _known_entries(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *answer, info = super().step(action)
        return *answer, _known_entries(info)


def _known_entries(info: dict[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in (ACTION_MASK, EPISODE_INFO, ABORTED) if key in info}


def _make_in_worker(
    owner: int, make: Callable[[], gymnasium.Env], name: str, number: int
) -> gymnasium.Env:
    parent = multiprocessing.parent_process()
    if os.getpid() != owner and parent is not None:  # the owner makes a copy to read its spaces
        lead_group()
        ignore_signals()
        die_with(parent.sentinel)
    return _WorkerCopy(make, name, number)


def lead_group() -> None:
    """Put this process and its children into a group that can be killed together."""
    os.setpgid(0, 0)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM, which the main process handles for the whole run.

    Not SIG_IGN for SIGTERM, because programs that an environment starts would inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _no_action)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _no_action(*_: object) -> None: ...


def die_with(lifeline: int) -> bool:
    """Let the kernel kill this process group when the other end of the pipe closes.

    Works also when the owner was killed and this group is in an endless loop. False where the
    system does not support it."""
    if not hasattr(fcntl, "F_SETSIG"):
        return False
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":
            os._exit(1)  # the other process died before the signal was armed
    return True


def kill_group(process_id: int) -> None:
    """Kill the remaining processes of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, signal.SIGKILL)


def end_groups(processes: Sequence[BaseProcess], seconds: float) -> None:
    """Wait `seconds` for the processes to end, then kill them and all that they started."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        if process.pid is not None:
            kill_group(process.pid)
    for process in processes:
        process.join(_EXIT_CODE_SECONDS)


def claim(folder: Path) -> None:
    """Mark a temporary folder of multiprocessing as owned by this process."""
    with contextlib.suppress(OSError):
        (folder / f"{_MARK}{os.getpid()}").touch()


def remove_leftovers() -> None:
    """Remove the marked temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("pymp-*"):
        with contextlib.suppress(OSError):
            owners = [path.name.removeprefix(_MARK) for path in folder.glob(f"{_MARK}*")]
            is_ours = bool(owners) and folder.stat().st_uid == os.getuid()
            if is_ours and not any(Path("/proc", owner).exists() for owner in owners):
                shutil.rmtree(folder, ignore_errors=True)
