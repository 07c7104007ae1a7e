# SPDX-License-Identifier: Apache-2.0
"""What a user's program can hear of a run while it goes on, and how it can end it.

Callbacks live in the process that called `veldt.train`, beside the nodes and never in their way: a
slow one delays what the run reports, not what it learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


class EnvironmentControl(Protocol):
    """What a run lets its callbacks change about its environments."""

    @property
    def values(self) -> Mapping[str, object]: ...

    def set(self, values: Mapping[str, object]) -> None: ...


@dataclass(frozen=True)
class Episode:
    """One training episode that has ended."""

    total_reward: float
    """As the environment gave it, not as it was clipped."""
    length: int


class Callback:
    """Override what you want to hear. An exception ends the run after a checkpoint."""

    _environment: EnvironmentControl | None = None

    def set_environment(self, **values: object) -> None:
        """Let all environments of all actors play with `values` (numbers, texts, lists of them)
        from their next episode on; values set before stay. An environment is told by its method
        `set_parameters(**values)`."""
        self._control().set(values)

    @property
    def environment_parameters(self) -> Mapping[str, object]:
        """All that was set, also before the run was resumed."""
        return self._control().values

    def _control(self) -> EnvironmentControl:
        if self._environment is None:
            raise RuntimeError("a callback can reach environments only while its run goes on")
        return self._environment

    def on_start(self) -> None:
        """Before anything runs; of a resumed run, when its checkpoint has been read."""

    def on_progress(self, metrics: Mapping[str, float]) -> bool | None:
        """About once per second, with what metrics.jsonl gets and "env_steps"; True ends the
        run."""

    def on_episode(self, episode: Episode) -> None:
        """For every training episode, a moment after it ended; of more than 100 in a twentieth of a
        second, for the last 100."""

    def on_checkpoint(self, path: Path, env_steps: int) -> None:
        """When a checkpoint is complete on disk."""

    def on_evaluation(self, returns: np.ndarray, env_steps: int) -> None:
        """After fresh episodes without exploration, with weights of that age."""


class CallbackFailure(RuntimeError):  # noqa: N818 - it reads as what it is in a trace
    """A callback raised; the exception itself is its cause."""

    def __init__(self, callback: Callback, method: str, error: Exception) -> None:
        name = f"{type(callback).__qualname__}.{method}"
        super().__init__(f"the callback {name} failed: {type(error).__name__}: {error}")


class Callbacks:
    """Calls all callbacks of a run, in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)

    def start(self, environment: EnvironmentControl) -> None:
        for callback in self._callbacks:
            callback._environment = environment
            try:
                callback.on_start()
            except Exception as error:
                raise CallbackFailure(callback, "on_start", error) from error

    def progress(self, env_steps: int, metrics: Mapping[str, float]) -> bool:
        """Whether one of them wants the run to end."""
        wants_end = False
        for callback in self._callbacks:
            try:
                wants_end |= bool(callback.on_progress({"env_steps": env_steps, **metrics}))
            except Exception as error:
                raise CallbackFailure(callback, "on_progress", error) from error
        return wants_end

    def episodes(self, episodes: Iterable[tuple[float, int]]) -> None:
        if not self._callbacks:
            return
        for total_reward, length in episodes:
            for callback in self._callbacks:
                try:
                    callback.on_episode(Episode(total_reward, length))
                except Exception as error:
                    raise CallbackFailure(callback, "on_episode", error) from error

    def checkpoint(self, path: Path, env_steps: int) -> None:
        for callback in self._callbacks:
            try:
                callback.on_checkpoint(path, env_steps)
            except Exception as error:
                raise CallbackFailure(callback, "on_checkpoint", error) from error

    def evaluation(self, returns: np.ndarray, env_steps: int) -> None:
        for callback in self._callbacks:
            try:
                callback.on_evaluation(returns, env_steps)
            except Exception as error:
                raise CallbackFailure(callback, "on_evaluation", error) from error
