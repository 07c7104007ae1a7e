# SPDX-License-Identifier: Apache-2.0
"""Callbacks, which follow or end a run, and sidecars, processes next to it.

Both are called in the process that called `veldt.train`, never in a node: a slow callback delays
what the run reports, not what it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Episode:
    """One training episode that has ended."""

    total_reward: float
    """Sum of the environment's own rewards, before clipping."""
    length: int


class Callback:
    """Base class of callbacks; every method may be overridden.

    An exception in a method ends the run after a checkpoint.
    """

    def on_start(self) -> None:
        """Called before the first step, or once a resumed run has read its checkpoint."""

    def on_progress(self, metrics: Mapping[str, float]) -> bool | None:
        """Called about once per second; returning True ends the run.

        Args:
            metrics: A line of metrics.jsonl, and "env_steps".
        """

    def on_episode(self, episode: Episode) -> None:
        """Called for every training episode, shortly after it ended.

        Of more than 100 episodes within 50 ms, only the last 100 are reported.
        """

    def on_checkpoint(self, path: Path, env_steps: int) -> None:
        """Called when a checkpoint is complete on disk."""

    def on_evaluation(self, returns: np.ndarray, env_steps: int) -> None:
        """Called after an evaluation.

        Args:
            returns: Returns of fresh episodes without exploration.
            env_steps: Age of the evaluated weights.
        """


class CallbackFailure(RuntimeError):  # noqa: N818 - a public name
    """A callback raised; the exception itself is its cause."""

    def __init__(self, callback: Callback, method: str, error: Exception) -> None:
        name = f"{type(callback).__qualname__}.{method}"
        super().__init__(f"the callback {name} failed: {type(error).__name__}: {error}")


class Callbacks:
    """Calls all callbacks of a run, in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)

    def start(self) -> None:
        self._call("on_start")

    def progress(self, env_steps: int, metrics: Mapping[str, float]) -> bool:
        """Whether one of them wants the run to end."""
        return bool(self._callbacks) and any(
            self._call("on_progress", {"env_steps": env_steps, **metrics})
        )

    def episodes(self, episodes: Iterable[tuple[float, int]]) -> None:
        if self._callbacks:
            for total_reward, length in episodes:
                self._call("on_episode", Episode(total_reward, length))

    def checkpoint(self, path: Path, env_steps: int) -> None:
        self._call("on_checkpoint", path, env_steps)

    def evaluation(self, returns: np.ndarray, env_steps: int) -> None:
        self._call("on_evaluation", returns, env_steps)

    def _call(self, method: str, *arguments: object) -> list[object]:
        results = []
        for callback in self._callbacks:
            try:
                results.append(getattr(callback, method)(*arguments))
            except Exception as error:
                raise CallbackFailure(callback, method, error) from error
        return results


class Sidecar:
    """Base class of processes next to a run: a live page, trackers. It does nothing."""

    def running(self, run_dir: Path, note: Callable[[str], None]) -> AbstractContextManager[None]:
        """Run while the context is entered; `note` reports a problem to the user."""
        return nullcontext()

    def poll(self) -> None:
        """Called about once per second."""
