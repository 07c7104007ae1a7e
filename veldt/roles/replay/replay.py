# SPDX-License-Identifier: Apache-2.0
"""Replay as a role: takes trajectories in, hands batches out, follows priorities, keeps a ratio."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperiencePart, ExperienceSink, ExperienceSource
from veldt.replay import PrioritizedSampler
from veldt.role import Arrays, Role, entries_below
from veldt.roles.replay.tables import SequenceTable, Table
from veldt.topology import Queue, Topology
from veldt.types import VALUE_BEST, VALUE_TAKEN, Batch, Slot

_GAUGES = (
    "items",
    "mean_age_inserts",
    "max_age_inserts",
    "sampled_priority",
    "max_sampled_priority",
    "samples_per_insert",
    "mean_priority",
)


@dataclass(eq=False)
class Replay(Role):
    """Between actors and learners. Batches wait in the queue to a learner, so that it never waits
    for a draw; the limiter counts them when they are drawn. Several learners, each with a queue of
    its own, are served in turn."""

    source: ExperienceSource
    sinks: list[ExperienceSink]
    table: Table
    feedback: ExperienceSource | None = None
    """Priorities of what was learned from."""

    def open(self, context: NodeContext) -> None:
        self._sinks = deque(self.sinks)
        self._store = self.table.make_store()
        self._sampler = self.table.make_sampler(self._store)
        self._limiter = self.table.make_limiter()
        self._batch_size = self.table.batch_size
        self._random = context.random("sampling")
        self._count(context)

    def _count(self, context: NodeContext) -> None:
        telemetry = context.telemetry
        self._adding, self._drawing = telemetry.stage("add"), telemetry.stage("draw")
        self._gauges = {name: telemetry.gauge(f"replay.{name}") for name in _GAUGES}
        self._stale = telemetry.counter("dropped.stale_priorities")

    def step(self) -> bool:
        worked = self._follow_priorities()
        worked |= self._take_in()
        worked |= self._hand_out()
        return worked

    def _take_in(self) -> bool:
        if not self._limiter.can_insert(self._store.items_per_block):
            return False
        trajectory = self.source.take_batch()
        if trajectory is None:
            return False
        with self._adding:
            changes = self._store.add(trajectory.arrays)
            self.source.release(trajectory)
            self._sampler.apply(changes, self._first_priorities(changes.inserted))
        self._limiter.inserted(changes.inserted.size)
        self._show(items=len(self._store))
        return True

    def _first_priorities(self, inserted: np.ndarray) -> np.ndarray | None:
        if not self.table.actors_rank:
            return None
        return self._store.td_errors(inserted, VALUE_TAKEN, VALUE_BEST)

    def _hand_out(self) -> bool:
        if not self._limiter.can_sample(self._batch_size) or not len(self._store):
            return False
        sink, slot = self._place()
        if slot is None:
            return False
        with self._drawing:
            indices, weights = self._sampler.sample(self._batch_size, self._random)
            self._store.sample(indices, out=slot.arrays)
            slot["weight"][:] = weights
        self._record(indices, slot["age"])
        sink.commit(slot)
        self._limiter.sampled(self._batch_size)
        self._sampler.apply(self._store.trim())
        ratio = self._limiter.num_sampled / max(1, self._limiter.num_inserted)
        self._show(samples_per_insert=ratio, items=len(self._store))
        return True

    def _place(self) -> tuple[ExperienceSink, Slot | None]:
        """Room for a batch with the learner that has waited longest."""
        for _ in range(len(self._sinks)):
            sink = self._sinks[0]
            self._sinks.rotate(-1)
            slot = sink.reserve()
            if slot is not None:
                return sink, slot
        return self._sinks[0], None

    def _record(self, indices: np.ndarray, age: np.ndarray) -> None:
        self._show(mean_age_inserts=age.mean(), max_age_inserts=age.max())
        if isinstance(self._sampler, PrioritizedSampler):
            drawn = self._sampler.priorities(indices)
            self._show(sampled_priority=drawn.mean(), max_sampled_priority=drawn.max())

    def _show(self, **levels: float) -> None:
        for name, level in levels.items():
            self._gauges[name].set(float(level))

    def _follow_priorities(self) -> bool:
        if self.feedback is None:
            return False
        update = self.feedback.take_batch()
        if update is None:
            return False
        priorities = update["priority"]
        self._stale.add(self._sampler.update(update["item_id"], priorities))
        self._show(mean_priority=priorities.mean())
        self.feedback.release(update)
        return True

    def state(self) -> Arrays:
        parts = {"store": self._store, "sampler": self._sampler, "limiter": self._limiter}
        return {
            f"{name}.{key}": value
            for name, part in parts.items()
            for key, value in part.state().items()
        }

    def load_state(self, state: Arrays) -> None:
        parts = {"store": self._store, "sampler": self._sampler, "limiter": self._limiter}
        for name, part in parts.items():
            part.load_state(entries_below(f"{name}.", state))
        # Actors begin new episodes after a restore: no window may run on into them.
        self._sampler.apply(self._store.end_streams())


@dataclass(eq=False)
class PrioritizedSource(ExperiencePart):
    """The learner's end of a prioritized replay: batches come, priorities go back."""

    batches: ExperienceSource
    priorities: ExperienceSink

    def open(self, context: NodeContext) -> None:
        self._late = context.telemetry.counter("dropped.late_priorities")

    def take_batch(self) -> Batch | None:
        return self.batches.take_batch()

    def release(self, batch: Batch) -> None:
        self.batches.release(batch)

    def prioritize(self, batch: Batch, priorities: np.ndarray) -> None:
        if not np.isfinite(priorities).all():
            return
        slot = self.priorities.reserve()
        if slot is None:
            self._late.add()
            return
        slot["item_id"][:] = batch["item_id"]
        slot["priority"][:] = priorities
        self.priorities.commit(slot)


def add_replay(topology: Topology, trajectories: Queue, table: SequenceTable) -> PrioritizedSource:
    """A prioritized replay behind a queue; the learner's end of it."""
    prefetch = table.options.prefetch_batches
    batches = topology.queue("batches", table.batch_layout, prefetch)
    priorities = topology.queue("priorities", table.priority_layout, prefetch + 2)
    role = Replay(trajectories.source(), [batches.sink], table, priorities.source())
    topology.add("replay", role)
    return PrioritizedSource(batches.source(), priorities.sink)
