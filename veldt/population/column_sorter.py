# SPDX-License-Identifier: Apache-2.0
"""Sorts the columns of trajectories by the policy that acted, into batches for each learner.

A policy changes only where an episode begins. What other policies did in a column is masked like
reset rows: no trace and no bootstrap reaches across, since none crosses an episode's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from veldt.context import NodeContext
from veldt.population.orders import POLICY
from veldt.ports import ExperienceSink, ExperienceSource
from veldt.role import Role
from veldt.types import Batch, Field, Layout, Slot

_NOT_SORTED = (POLICY, "provenance")


def with_policies(layout: Layout) -> Layout:
    """Trajectories in which each column may be of another policy, with versions of its own."""
    fields = dict(layout.fields)
    rows = fields["first"].shape
    fields["parameter_version"] = Field(rows, "int64", join_axis=1)
    fields[POLICY] = Field(rows, "int64", join_axis=1)
    return Layout(tuple(fields.items()))


def sorted_layout(layout: Layout, num_columns: int) -> Layout:
    """A batch of columns of one policy."""
    fields = []
    for name, field in layout.fields:
        if name not in _NOT_SORTED:
            shape = list(field.shape)
            shape[field.join_axis] = num_columns
            fields.append((name, replace(field, shape=tuple(shape))))
    return Layout(tuple(fields))


@dataclass
class _Filling:
    """A policy's batch that is being put together."""

    sink: ExperienceSink
    slot: Slot | None = None
    columns: int = 0


@dataclass(eq=False)
class ColumnSorter(Role):
    """Copies each column once into the batch of every policy that acted in it. While a learner is
    behind, its trajectory waits here, and so do the actors."""

    source: ExperienceSource
    sinks: list[ExperienceSink]
    layout: Layout
    """Of the sinks' slots."""

    def open(self, context: NodeContext) -> None:
        self._fillings = [_Filling(sink) for sink in self.sinks]
        self._axes = [(name, field.join_axis) for name, field in self.layout.fields]
        self._num_columns = self.layout["first"].shape[1]
        self._batch: Batch | None = None
        self._todo: list[tuple[int, np.ndarray]] = []
        self._sorting = context.telemetry.stage("sort")

    def step(self) -> bool:
        if self._batch is None:
            self._batch = self.source.take_batch()
            if self._batch is None:
                return False
            self._todo = self._columns_by_policy(self._batch)
        with self._sorting:
            worked = self._fill(self._batch)
        if not self._todo:
            self.source.release(self._batch)
            self._batch = None
        return worked

    def _columns_by_policy(self, batch: Batch) -> list[tuple[int, np.ndarray]]:
        policies, used = batch[POLICY][:-1], ~batch["ignored"][:-1]
        found = []
        for policy in range(len(self._fillings)):
            columns = np.flatnonzero(((policies == policy) & used).any(axis=0))
            if columns.size:
                found.append((policy, columns))
        return found

    def _fill(self, batch: Batch) -> bool:
        worked = not self._todo
        while self._todo:
            policy, columns = self._todo[0]
            filling = self._fillings[policy]
            if filling.slot is None:
                filling.slot = filling.sink.reserve()
            if filling.slot is None:
                return worked
            now, later = np.split(columns, [self._num_columns - filling.columns])
            self._copy(batch, now, policy, filling)
            self._todo[:1] = [(policy, later)] if later.size else []
            worked = True
        return worked

    def _copy(self, batch: Batch, columns: np.ndarray, policy: int, filling: _Filling) -> None:
        slot = filling.slot
        assert slot is not None
        place = slice(filling.columns, filling.columns + columns.size)
        for name, axis in self._axes:
            if axis == 0:
                slot[name][place] = batch[name][columns]
            else:
                slot[name][:, place] = batch[name][:, columns]
        foreign = batch[POLICY][:, columns] != policy
        slot["ignored"][:, place] |= foreign
        # Versions of other policies mean nothing here; lag is counted over all rows.
        versions = slot["parameter_version"][:, place]
        newest = np.where(foreign[:-1], -1, versions[:-1]).max(axis=0)
        versions[:] = np.where(foreign, newest, versions)
        filling.columns += columns.size
        if filling.columns == self._num_columns:
            filling.sink.commit(slot)
            filling.slot, filling.columns = None, 0
