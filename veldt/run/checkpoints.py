# SPDX-License-Identifier: Apache-2.0
"""When a run saves itself, what goes into a checkpoint, and how a run begins from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veldt.backends.background import Background
from veldt.backends.base import Backend, Capture, NodeFailure, captured
from veldt.backends.checkpoint_parts import (
    CHANNELS,
    RUN,
    WEIGHTS,
    Parts,
)
from veldt.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore, step_of
from veldt.errors import ConfigurationError
from veldt.telemetry.aggregate import RunTelemetry
from veldt.topology import Topology, numbered_name
from veldt.types import ORDERS, Parameters

_CAPTURE_SECONDS = 30.0  # for actors within a long step, while the run continues
_WRITE_SECONDS = 60.0


def best_policy(backend: Backend, topology: Topology) -> int | None:
    """Index of the policy with the best returns; None where there is one policy."""
    if all(board.spec.name != ORDERS for board in topology.boards):
        return None
    return int(backend.parameters(ORDERS).vector[0])


def newest_weights(backend: Backend, topology: Topology) -> Parameters:
    """Weights of the best policy; slices on several boards are joined, with the oldest version."""
    best = best_policy(backend, topology)
    if best is not None:
        return backend.parameters(numbered_name("weights", best))
    slices = [backend.parameters(board) for board in topology.weights]
    if len(slices) == 1:
        return slices[0]
    vector = np.concatenate([part.vector for part in slices])
    return Parameters(vector, min(part.version for part in slices))


def weights_in(checkpoint: Checkpoint, policy: int | None = None) -> Parameters:
    """The weights that a checkpoint was made with, or those of one of several policies."""
    if policy is None:
        return Parameters(checkpoint.load(WEIGHTS)["vector"], int(checkpoint.meta["version"]))
    saved = checkpoint.load(CHANNELS) if checkpoint.meta["complete"] else {}
    count = sum(name.startswith("board.weights") for name in saved)
    if f"board.{ORDERS}" not in saved or not 0 <= policy < count:
        known = f"0 to {count - 1}" if f"board.{ORDERS}" in saved else "one policy only"
        raise ConfigurationError(f"{checkpoint.path} has no policy {policy}; it has {known}")
    name = numbered_name("weights", policy)
    return Parameters(saved[f"board.{name}"], int(saved[f"version.{name}"]))


@dataclass
class _Save:
    """A checkpoint in progress: nodes hand over their state, then a thread writes it."""

    capture: Capture
    weights: Parameters
    writing: Background[Path] | None = None


class RunCheckpoints:
    """The checkpoints of one run.

    With `every_env_steps` they are at fixed numbers of env steps, and each is a new beginning (see
    SerialBackend.restore). With `every_seconds` the run continues while they are made.
    """

    def __init__(
        self,
        directory: Path,
        backend: Backend,
        telemetry: RunTelemetry,
        *,
        every_seconds: float | None,
        every_env_steps: int | None,
        note: Callable[[str], None],
        keep: int = 2,
        saved: Callable[[Path, int], None] = lambda path, env_steps: None,
    ) -> None:
        self._store = CheckpointStore(directory, keep)
        self._backend, self._telemetry, self._note = backend, telemetry, note
        self._saved = saved
        self._every_seconds, self._every_env_steps = every_seconds, every_env_steps
        self._next_seconds = every_seconds or 0.0
        self._next_env_steps = every_env_steps or 0
        self._generation = 0
        self._save: _Save | None = None

    def begin_from_newest(self, topology: Topology | None = None) -> int:
        """Restore the newest valid checkpoint, which must have the nodes of `topology`; its env
        steps."""
        try:
            checkpoint = self._store.newest()
            for problem in self._store.problems:
                self._note(f"skipped a damaged checkpoint: {problem}")
            if checkpoint is None:
                raise ConfigurationError(
                    f"{self._store.directory} holds no checkpoint to resume from; train anew"
                    " instead"
                )
            if not checkpoint.meta["complete"]:
                raise ConfigurationError(
                    f"{checkpoint.path} holds weights only, since the run ended without a complete"
                    " checkpoint; train anew, or evaluate it"
                )
            if topology is not None:
                self._check_fits(checkpoint, topology)
        except CheckpointError as error:
            raise ConfigurationError(str(error)) from error
        self._generation = int(checkpoint.meta["generation"])
        self._backend.restore(checkpoint.path, self._generation)
        self._telemetry.load_state(checkpoint.load(RUN))
        env_steps = int(checkpoint.meta["env_steps"])
        self._schedule_after(env_steps)
        return env_steps

    def _check_fits(self, checkpoint: Checkpoint, topology: Topology) -> None:
        found, expected = weights_in(checkpoint).vector.size, topology.num_weights
        if expected != found:
            raise ConfigurationError(
                f"{checkpoint.path} has {found:,} weights but the network now has {expected:,};"
                " the environment or the network has changed since: train anew"
            )
        saved = set(checkpoint.parts) - {CHANNELS, RUN, WEIGHTS}
        if saved != {node.name for node in topology.nodes}:
            raise ConfigurationError(
                f"{checkpoint.path} is of a run with other nodes, which another version wrote; use"
                " that version, or begin with its weights: --from RUN_DIR"
            )

    def _schedule_after(self, env_steps: int) -> None:
        """Schedule the next multiple, which is the same whether or not the run was interrupted."""
        if self._every_env_steps is not None:
            period = self._every_env_steps
            self._next_env_steps = (env_steps // period + 1) * period

    def save_if_due(self, elapsed_seconds: float, weights: Callable[[], Parameters]) -> None:
        """Begin a checkpoint when it is due, or continue the one in progress."""
        env_steps = self._telemetry.env_steps
        if self._save is not None:
            self._continue(self._save)
        elif self._every_seconds is not None and elapsed_seconds >= self._next_seconds:
            self._next_seconds = elapsed_seconds + self._every_seconds
            with self._failure_reported():
                newest = weights()
                _check_finite(newest)
                self._save = _Save(self._backend.capture(_CAPTURE_SECONDS), newest)
        elif self._every_env_steps is not None and env_steps >= self._next_env_steps:
            self._schedule_after(env_steps)
            self.save(weights())

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        try:
            yield
        except (CheckpointError, OSError, MemoryError) as error:
            self._save = None
            self._note(f"no checkpoint was written: {error}")

    def _continue(self, save: _Save) -> None:
        with self._failure_reported():
            if save.writing is None:
                if save.capture.ready():
                    write = self._prepared(save.weights, complete=True)
                    save.writing = Background(lambda: write(save.capture.parts()))
            elif save.writing.done():
                self._save = None
                path = save.writing.result()
                self._backend.restore(path, self._generation)
                self._saved(path, step_of(path.name))

    def save(self, weights: Parameters) -> Path | None:
        """Save one complete checkpoint and wait for it; a failure is reported."""
        path = self._written(weights, _CAPTURE_SECONDS)
        if path is not None:
            # Serial begins anew from it; elsewhere restarted nodes will.
            self._backend.restore(path, self._generation)
            self._saved(path, self._telemetry.env_steps)
        return path

    def _written(self, weights: Parameters, capture_seconds: float) -> Path | None:
        with self._failure_reported():
            _check_finite(weights)
            parts = captured(self._backend, capture_seconds)
            return self._prepared(weights, complete=True)(parts)
        return None

    def save_last(
        self, weights: Parameters, nodes_are_alive: bool, patience_seconds: float
    ) -> None:
        """Save the last checkpoint of a run, without actors that take longer to answer. After a
        failure only weights are left; they are saved if there is no checkpoint yet, so that the run
        can be evaluated."""
        save, self._save = self._save, None
        if save is not None and save.writing is not None:
            if save.writing.done(_WRITE_SECONDS):
                self._continue(save)
            else:
                self._note(f"a checkpoint is still being written after {_WRITE_SECONDS:.0f} s")
        if nodes_are_alive:
            try:
                path = self._written(weights, patience_seconds)
                if path is not None:
                    self._saved(path, self._telemetry.env_steps)
                    return
            except NodeFailure as failure:
                self._note(f"{failure} while the last checkpoint was made")
        with self._failure_reported():
            if self._store.newest() is None:
                self._prepared(weights, complete=False)({})

    def _prepared(self, weights: Parameters, complete: bool) -> Callable[[Parts], Path]:
        """A function that writes nodes' parts together with the run's numbers of this moment."""
        self._generation += 1
        env_steps = self._telemetry.env_steps
        meta = {
            "complete": complete,
            "generation": self._generation,
            "version": weights.version,
            "env_steps": env_steps,
        }
        own = {WEIGHTS: {"vector": weights.vector}, RUN: self._telemetry.state()}
        return lambda nodes: self._store.save(env_steps, {**nodes, **own}, meta)


def _check_finite(weights: Parameters) -> None:
    if not np.isfinite(weights.vector).all():
        raise CheckpointError("the weights are not finite")
