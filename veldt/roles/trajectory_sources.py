# SPDX-License-Identifier: Apache-2.0
"""Sources that replay earlier trajectories (IMPALA) or mask rows of replaced weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from veldt.context import NodeContext
from veldt.options.checked import Bounds, Count, Options
from veldt.ports import ExperiencePart, ExperienceSource
from veldt.resources import require_bytes
from veldt.types import Batch, Layout

_LEFT_OUT = ("provenance",)


@dataclass(frozen=True)
class TrajectoryReplayOptions(Options):
    """How many trajectories are kept, and how much of each batch is replayed."""

    replay_fraction: Annotated[float, Bounds(0, 1, below=True)] = 0.0
    """Share of each batch that is replayed (the paper's variant: 0.5); 0: no replay."""
    replay_trajectories: Count = 10_000
    """Trajectories of one environment that a learner keeps for replay; the oldest go first."""


def with_replay(
    source: ExperienceSource, layout: Layout, options: TrajectoryReplayOptions
) -> ExperienceSource:
    """The source, joined with trajectories of earlier batches if `options` ask for it."""
    if not options.replay_fraction:
        return source
    width = layout["reward"].shape[1]
    drawn = width * options.replay_fraction / (1.0 - options.replay_fraction)
    kept = max(options.replay_trajectories, drawn)
    require_bytes(
        round((kept + drawn) * layout.nbytes / width),
        "replay",
        "lower --replay-trajectories or --replay-fraction",
    )
    return TrajectoryReplay(source, layout, options)


@dataclass(eq=False)
class TrajectoryReplay(ExperiencePart):
    """Joins each batch of its source with trajectories of earlier ones, drawn uniformly.

    The first batches are passed on unchanged, until enough trajectories are stored. The unit is one
    environment's trajectory, so a replayed batch mixes columns of many actors and times. Rows keep
    the version they were acted with, which the reported lag counts."""

    source: ExperienceSource
    layout: Layout
    """Of the slots that the source joins."""
    options: TrajectoryReplayOptions

    def open(self, context: NodeContext) -> None:
        self._random = context.random("replay")
        self._axes = {
            name: field.join_axis for name, field in self.layout.fields if name not in _LEFT_OUT
        }
        self._stored: dict[str, np.ndarray] = {}
        self._joined: dict[str, np.ndarray] = {}
        self._size = self._next = 0
        self._replayed = context.telemetry.counter("replayed_env_steps")

    def take_batch(self) -> Batch | None:
        fresh = self.source.take_batch()
        if fresh is None:
            return None
        columns = {name: self._columns(fresh, name) for name in self._axes}
        width = columns["reward"].shape[0]
        fraction = self.options.replay_fraction
        extra = round(width * fraction / (1.0 - fraction))
        if not self._stored:
            self._allocate(columns, extra)
        if self._size < extra:
            self._insert(columns, width)
            return fresh
        self._join(columns, self._random.integers(self._size, size=extra))
        self._insert(columns, width)
        self.source.release(fresh)
        return Batch(self._joined)

    def release(self, batch: Batch) -> None:
        if batch.arrays is not self._joined:
            self.source.release(batch)

    def _columns(self, batch: Batch, name: str) -> np.ndarray:
        """[columns, ...] with one entry per environment; versions are one per slot and repeated."""
        array = np.moveaxis(batch[name], self._axes[name], 0)
        repeats = batch["reward"].shape[1] // array.shape[0]
        return np.repeat(array, repeats, axis=0) if repeats > 1 else array

    def _allocate(self, columns: dict[str, np.ndarray], extra: int) -> None:
        capacity = max(self.options.replay_trajectories, extra, columns["reward"].shape[0])
        for name, array in columns.items():
            self._stored[name] = np.zeros((capacity, *array.shape[1:]), array.dtype)
            shape = list(array.shape[1:])
            shape.insert(self._axes[name], array.shape[0] + extra)
            self._joined[name] = np.zeros(shape, array.dtype)

    def _join(self, columns: dict[str, np.ndarray], chosen: np.ndarray) -> None:
        for name, array in columns.items():
            place = np.moveaxis(self._joined[name], self._axes[name], 0)
            place[: len(array)] = array
            place[len(array) :] = self._stored[name][chosen]
        ignored = self._stored["ignored"][chosen, :-1]
        self._replayed.add(ignored.size - int(np.count_nonzero(ignored)))

    def _insert(self, columns: dict[str, np.ndarray], width: int) -> None:
        capacity = len(self._stored["reward"])
        places = (self._next + np.arange(width)) % capacity
        for name, array in columns.items():
            self._stored[name][places] = array
        self._next = (self._next + width) % capacity
        self._size = min(capacity, self._size + width)


class NewerRows:
    """Masks rows older than `first_version`, and skips batches without any other row.

    Members of a population and players of a league replace their weights, and must not learn from
    rows of the replaced policy."""

    def __init__(self, context: NodeContext, source: ExperienceSource, first_version: int) -> None:
        self._source, self.first_version = source, first_version
        self._dropped = context.telemetry.counter("dropped.replaced_policy")

    def take_batch(self) -> Batch | None:
        while (batch := self._source.take_batch()) is not None:
            if self._has_rows_after_masking(batch):
                return batch
            self._source.release(batch)
        return None

    def release(self, batch: Batch) -> None:
        self._source.release(batch)

    def _has_rows_after_masking(self, batch: Batch) -> bool:
        old = batch["parameter_version"][:-1] < self.first_version
        if not old.any():
            return True
        ignored = batch["ignored"][:-1]
        old = np.repeat(old, ignored.shape[1] // old.shape[1], axis=1)
        self._dropped.add(int(np.count_nonzero(old & ~ignored)))
        ignored |= old
        return not ignored.all()
