# SPDX-License-Identifier: Apache-2.0
"""One process per environment, for those that are slow, leak, crash or hold the interpreter lock.

Gymnasium's AsyncVectorEnv ends as a whole when one of its processes dies. Here another process
takes over, and only the episode of that environment is lost, as where an environment raises. No
process outlives the one that steps it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_space,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)

from veldt.environments.infos import EPISODE_INFO
from veldt.environments.parameters import Values
from veldt.environments.processes import (
    Connection,
    die_with,
    ignore_signals,
    kill_group,
    lead_group,
    pipe,
    process_context,
    start,
)
from veldt.environments.resilience import (
    AbortedEpisodes,
    EnvironmentFailure,
    Failures,
    ResilientEnvironment,
)
from veldt.types import ACTION_MASK

_CLOSE_SECONDS = 2.0
_EXIT_CODE_SECONDS = 1.0
_DEAD = (EOFError, OSError)
_RESTART_STRIDE = 1000  # seeds of an environment that was rebuilt in a replaced process
_INFO_KEYS = ("final_info", "final_obs", ACTION_MASK, EPISODE_INFO)

Answer = tuple[float, bool, bool, dict[str, Any], bool]
"""Reward, terminated, truncated, info, and whether the episode was aborted."""


@dataclass(frozen=True)
class Job:
    """Arguments of a worker process."""

    make: Callable[[], ResilientEnvironment]
    number: int
    mode: AutoresetMode
    memory: Any
    """Shared memory with the observations of all environments."""
    seed: int | None = None
    times_rebuilt: int = 0
    """More than 0: an earlier worker has died."""
    parameters: Values = field(default_factory=dict)


class SubprocessVector(VectorEnv):
    """Copies of one environment that step at the same time, each in a process of its own."""

    def __init__(
        self,
        copies: Sequence[Callable[[], ResilientEnvironment]],
        name: str,
        mode: AutoresetMode,
        aborted: AbortedEpisodes,
    ) -> None:
        example = copies[0]()
        self.num_envs, self._mode, self._aborted = len(copies), mode, aborted
        self.metadata = {**example.metadata, "autoreset_mode": mode}
        self.render_mode = example.render_mode
        self.single_observation_space = example.observation_space
        self.single_action_space = example.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        example.close()
        space = self.single_observation_space
        memory = create_shared_memory(space, self.num_envs, process_context())
        self._observations: Any = read_from_shared_memory(space, memory, self.num_envs)
        self._workers = [
            _Worker(Job(make, number, mode, memory), name) for number, make in enumerate(copies)
        ]
        self._end = weakref.finalize(self, _end_all, self._workers)
        for worker in self._workers:
            worker.await_start()

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
            worker.send("reset", None if seeds is None else seeds[row], options)
        infos: dict[str, Any] = {}
        for row in rows:
            infos = self._add_info(infos, self._workers[row].first_info(), row)
        return self._observations, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        for worker, action in zip(self._workers, iterate(self.action_space, actions), strict=True):
            worker.send("step", action)
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        infos: dict[str, Any] = {}
        ended: dict[int, dict[str, float]] = {}
        for row in range(self.num_envs):
            rewards[row], terminated[row], truncated[row], info, aborted = self._answer(row)
            numbers = info.get("final_info", info).pop(EPISODE_INFO, None)
            if numbers:
                ended[row] = numbers
            infos = self._add_info(infos, info, row)
            if aborted:
                self._aborted.rows.append(row)
        if ended:
            infos[EPISODE_INFO] = ended
        return self._observations, rewards, terminated, truncated, infos

    def _answer(self, row: int) -> Answer:
        worker = self._workers[row]
        try:
            answer: Answer = worker.receive()
        except _DEAD as error:
            worker.replace(error)
            return 0.0, False, True, self._info_after_death(row), True
        worker.failures.well()
        worker.mask = answer[3].get(ACTION_MASK)
        return answer

    def _info_after_death(self, row: int) -> dict[str, Any]:
        worker = self._workers[row]
        if self._mode != AutoresetMode.SAME_STEP:
            return {} if worker.mask is None else {ACTION_MASK: worker.mask}
        last = _copied(list(iterate(self.observation_space, self._observations))[row])
        worker.send("reset", None, {})
        return {"final_obs": last, "final_info": {}, **worker.first_info()}

    def pass_on(self, values: Values) -> None:
        for worker in self._workers:
            worker.pass_on(values)

    def render(self) -> tuple[Any, ...] | None:
        for worker in self._workers:
            worker.send("render")
        return tuple(worker.receive() for worker in self._workers)

    def close_extras(self, **kwargs: Any) -> None:
        for worker in self._workers:
            with contextlib.suppress(*_DEAD):
                worker.send("close")
        self._end()


class _Worker:
    """The process of one environment, and those that replace it."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self.failures = Failures(name, job.number)
        self.seed: int | None = None
        self.mask: Any = None
        self._times_replaced = 0
        self._start()

    def _start(self) -> None:
        self._pipe, other = pipe()
        # One pipe per process: the kernel signals one group only when the other end closes.
        lifeline, self._lifeline = pipe(duplex=False)
        self._process = start(_run_worker, self._job, other, lifeline)
        other.close()
        lifeline.close()

    def await_start(self) -> None:
        """Wait until the environment is made, replacing processes that die before."""
        try:
            self.receive()
        except _DEAD as error:
            self.replace(error)

    def send(self, what: str, *arguments: Any) -> None:
        # A dead process is noticed when its answer is received.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((what, *arguments))

    def receive(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def first_info(self) -> dict[str, Any]:
        """The info of a reset that was sent, from whichever process completes it."""
        while True:
            try:
                info: dict[str, Any] = self.receive()
                return info
            except _DEAD as error:
                self.replace(error)
                self.send("reset", None, {})

    def pass_on(self, values: Values) -> None:
        """Set parameters of this process and of those that replace it."""
        self._job = replace(self._job, parameters=values)
        self.send("parameters", values)

    def replace(self, error: BaseException) -> None:
        """Start another process, whose environment begins a new episode."""
        while True:
            died = RuntimeError(self._cause_of_death())
            died.__cause__ = error
            self.failures.count(died)
            self.end(0.0)
            self._times_replaced += 1
            self._job = replace(
                self._job, seed=self.seed, times_rebuilt=self._times_replaced * _RESTART_STRIDE
            )
            self._start()
            try:
                self.receive()
                return
            except _DEAD as another:
                error = another

    def _cause_of_death(self) -> str:
        self._process.join(_EXIT_CODE_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its worker process was ended by {signal.Signals(-code).name}"
        return f"its worker process ended with exit code {code}"

    def end(self, seconds: float) -> None:
        """Wait `seconds` for the process to close, then kill it and all that it started."""
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


def _run_worker(job: Job, pipe: Connection, lifeline: Connection) -> None:
    """Entry point of a process. Sends True once the environment is made, then one answer for each
    request; exceptions are answers too."""
    lead_group()
    ignore_signals()
    die_with(lifeline.fileno())
    try:
        _serve(job, pipe)
    except (EOFError, OSError):
        os._exit(0)  # the other process has ended
    except (Exception, SystemExit) as error:
        known = type(error).__module__.startswith(("gymnasium", "veldt"))
        can_travel = isinstance(error, Exception) and known  # other types may not unpickle there
        pipe.send(error if can_travel else EnvironmentFailure(str(error)))


def _serve(job: Job, pipe: Connection) -> None:
    env = job.make()
    env.aborted = AbortedEpisodes()
    if job.times_rebuilt:
        env.take_over(job.seed, job.times_rebuilt)
    if job.parameters:
        env.pass_on(job.parameters)
    pipe.send(True)
    resets_next = job.times_rebuilt > 0 and job.mode == AutoresetMode.NEXT_STEP

    def reset(seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        observation, info = env.reset(seed=seed, options=options)
        show(observation)
        return _known_entries(info)

    def show(observation: Any) -> None:
        write_to_shared_memory(env.observation_space, job.number, observation, job.memory)

    while True:
        what, *arguments = pipe.recv()
        if what == "close":
            env.close()
            return
        if what == "parameters":
            env.pass_on(*arguments)
        elif what == "render":
            pipe.send(env.render())
        elif what == "reset":
            seed, options = arguments
            pipe.send(reset(seed, options or None))
            resets_next = False
        elif resets_next:
            pipe.send((0.0, False, False, reset(None, None), False))
            resets_next = False
        else:
            observation, reward, terminated, truncated, info = env.step(*arguments)
            if terminated or truncated:
                resets_next = job.mode == AutoresetMode.NEXT_STEP
                if job.mode == AutoresetMode.SAME_STEP:
                    final = {"final_info": _known_entries(info), "final_obs": observation}
                    observation, first_info = env.reset()
                    info = {**first_info, **final}
            show(observation)
            aborted = bool(env.aborted.rows)
            env.aborted.rows.clear()
            flags = (bool(terminated), bool(truncated))
            pipe.send((float(reward), *flags, _known_entries(info), aborted))


def _known_entries(info: dict[str, Any]) -> dict[str, Any]:
    """The entries that are read; others may be of any type and are not sent."""
    return {name: info[name] for name in _INFO_KEYS if name in info}
