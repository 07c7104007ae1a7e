# SPDX-License-Identifier: Apache-2.0
"""One process per environment, for those that are slow, leak, crash or hold the interpreter.

A worker that dies costs its own episode: another one takes over, as where an environment raises.
None outlives the process that steps it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_space,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
)

from veldt.environments.infos import EPISODE_INFO
from veldt.environments.parameters import Values
from veldt.environments.processes import kill_group, pipe, process_context, start
from veldt.environments.resilience import (
    AbortedEpisodes,
    Failures,
    ResilientEnvironment,
)
from veldt.environments.stepping import CLOSE, Command, Job, run_worker
from veldt.types import ACTION_MASK

_CLOSE_SECONDS = 2.0
_EXIT_CODE_SECONDS = 1.0
_GONE = (EOFError, OSError)
_RESTART_STRIDE = 1000  # seeds of an environment that was rebuilt in a worker that was replaced


class WorkerDied(RuntimeError):  # noqa: N818 - it reads as what it is in a message
    """The process of one environment ended."""


class SubprocessVector(VectorEnv):
    """Copies of one environment, each stepped by a process of its own; they step side by side."""

    def __init__(
        self,
        copies: Sequence[Callable[[], ResilientEnvironment]],
        name: str,
        mode: AutoresetMode,
        aborted: AbortedEpisodes,
    ) -> None:
        shown = copies[0]()
        self.num_envs, self._mode, self._aborted = len(copies), mode, aborted
        self.metadata = {**shown.metadata, "autoreset_mode": mode}
        self.render_mode = shown.render_mode
        self.single_observation_space = shown.observation_space
        self.single_action_space = shown.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        shown.close()
        space = self.single_observation_space
        memory = create_shared_memory(space, self.num_envs, process_context())
        self._observations: Any = read_from_shared_memory(space, memory, self.num_envs)
        self._workers = [
            _Worker(Job(make, number, mode, memory), name) for number, make in enumerate(copies)
        ]
        self._end = weakref.finalize(self, _end_all, self._workers)
        for worker in self._workers:
            worker.receive_first()

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, dtype=bool))
        seeds = [seed + row for row in range(self.num_envs)] if isinstance(seed, int) else seed
        rows = np.flatnonzero(mask).tolist()
        for row in rows:
            worker = self._workers[row]
            if seeds is not None:
                worker.seed = seeds[row]
            worker.send(Command.reset(seeds[row] if seeds is not None else None, options))
        infos: dict[str, Any] = {}
        for row in rows:
            infos = self._add_info(infos, self._first_answer(row), row)
        return self._observations, infos

    def _first_answer(self, row: int) -> dict[str, Any]:
        """The info of a reset, by whichever worker survives it."""
        worker = self._workers[row]
        while True:
            try:
                info: dict[str, Any] = worker.receive()
                return info
            except _GONE as error:
                worker.replace(error)
                worker.send(Command.reset(None, {}))

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        for worker, action in zip(self._workers, iterate(self.action_space, actions), strict=True):
            worker.send(Command.step(action))
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        infos: dict[str, Any] = {}
        ended: dict[int, dict[str, float]] = {}
        for row in range(self.num_envs):
            answer = self._answer(row)
            rewards[row], terminated[row], truncated[row], info, aborted = answer
            numbers = info.get("final_info", info).pop(EPISODE_INFO, None)
            if numbers:
                ended[row] = numbers
            infos = self._add_info(infos, info, row)
            if aborted:
                self._aborted.rows.append(row)
        if ended:
            infos[EPISODE_INFO] = ended
        return self._observations, rewards, terminated, truncated, infos

    def _answer(self, row: int) -> tuple[float, bool, bool, dict[str, Any], bool]:
        """Of one environment: reward, terminated, truncated, info, whether its episode was given
        up."""
        worker = self._workers[row]
        try:
            answer: tuple[float, bool, bool, dict[str, Any], bool] = worker.receive()
        except _GONE as error:
            worker.replace(error)
            return 0.0, False, True, self._info_after_death(row), True
        worker.failures.well()
        worker.mask = answer[3].get(ACTION_MASK)
        return answer

    def _info_after_death(self, row: int) -> dict[str, Any]:
        worker = self._workers[row]
        if self._mode != AutoresetMode.SAME_STEP:
            return {} if worker.mask is None else {ACTION_MASK: worker.mask}
        batch = list(iterate(self.observation_space, self._observations))
        last = _copied(batch[row])
        worker.send(Command.reset(None, {}))
        return {"final_obs": last, "final_info": {}, **self._first_answer(row)}

    def pass_on(self, values: Values) -> None:
        for worker in self._workers:
            worker.pass_on(values)

    def render(self) -> tuple[Any, ...] | None:
        for worker in self._workers:
            worker.send(Command.render())
        return tuple(worker.receive() for worker in self._workers)

    def close_extras(self, **kwargs: Any) -> None:
        for worker in self._workers:
            with contextlib.suppress(*_GONE):
                worker.send(CLOSE)
        self._end()


class _Worker:
    """The process of one environment, and its successors."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self.failures = Failures(name, job.number)
        self.seed: int | None = None
        self.mask: Any = None
        self._replaced = 0
        self._start()

    def _start(self) -> None:
        self._pipe, other = pipe()
        # One for each: a file has one owner, and its end is told to that one's group alone.
        lifeline, self._lifeline = pipe(duplex=False)
        self._process = start(run_worker, self._job, other, lifeline)
        other.close()
        lifeline.close()

    def receive_first(self) -> None:
        """That its environment has been made, by whichever process survives that."""
        try:
            self.receive()
        except _GONE as error:
            self.replace(error)

    def pass_on(self, values: Values) -> None:
        """To this process, and to those that take its place."""
        self._job = replace(self._job, parameters=values)
        self.send(Command.parameters(values))

    def send(self, command: Command) -> None:
        # Who cannot be reached any more is found out when its answer is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(command)

    def receive(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def replace(self, error: BaseException) -> None:
        """Another process for the environment, which begins a new episode."""
        while True:
            died = WorkerDied(self._epitaph())
            died.__cause__ = error
            self.failures.count(died)
            self.end(0.0)
            self._replaced += 1
            times = self._replaced * _RESTART_STRIDE
            self._job = self._job.taken_over(self.seed, times)
            self._start()
            try:
                self.receive()
                return
            except _GONE as another:
                error = another

    def _epitaph(self) -> str:
        self._process.join(_EXIT_CODE_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its worker process was ended by {signal.Signals(-code).name}"
        return f"its worker process ended with exit code {code}"

    def end(self, seconds: float) -> None:
        """Leave it `seconds` to close; then nothing of it or of what it started is left."""
        self._process.join(seconds)
        process_id = self._process.pid
        if process_id is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
            kill_group(process_id)
        self._process.join(_EXIT_CODE_SECONDS)
        self._pipe.close()
        self._lifeline.close()


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end(_CLOSE_SECONDS)


def _copied(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: _copied(value) for name, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_copied, observation))
    return np.array(observation)
