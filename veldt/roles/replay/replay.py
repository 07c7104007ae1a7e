# SPDX-License-Identifier: Apache-2.0
"""Replay as a role: takes trajectories in, hands batches out, follows priorities, keeps a ratio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperienceSink, ExperienceSource
from veldt.replay import PrioritizedSampler, RateLimiter, TransitionStore, UniformSampler
from veldt.replay.layouts import transition_layout
from veldt.types import VALUE_BEST, VALUE_TAKEN, Field, Layout, Slot


def batch_layout(trajectories: Layout, batch_size: int, outputs: Sequence[str] = ()) -> Layout:
    """What a learner gets: transitions, their importance weights and the kept `outputs`."""
    fields = dict(transition_layout(trajectories, batch_size, outputs).fields)
    fields["weight"] = Field((batch_size,), "float32")
    return Layout(tuple(fields.items()))


def priority_layout(batch_size: int) -> Layout:
    """What a learner sends back."""
    return Layout.of(
        item_id=Field((batch_size,), "int64"), priority=Field((batch_size,), "float32")
    )


class Replay:
    """Between actors and learners. Batches wait in the queue to a learner, so that it never waits
    for a draw; the limiter counts them when they are drawn. Several learners, each with a queue of
    its own, are served in turn."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        source: ExperienceSource,
        sink: ExperienceSink | list[ExperienceSink],
        feedback: ExperienceSource | None = None,
        make_store: Callable[[], TransitionStore],
        make_sampler: Callable[[TransitionStore], UniformSampler | PrioritizedSampler],
        make_limiter: Callable[[], RateLimiter],
        batch_size: int,
        initial_priorities: bool = False,
    ) -> None:
        self._source, self._feedback = source, feedback
        self._sinks = deque(sink if isinstance(sink, list) else [sink])
        self._store = make_store()
        self._sampler = make_sampler(self._store)
        self._limiter = make_limiter()
        self._batch_size, self._initial_priorities = batch_size, initial_priorities
        self._random = context.random("sampling")
        self._count(context)

    def _count(self, context: NodeContext) -> None:
        telemetry = context.telemetry
        self._adding, self._drawing = telemetry.stage("add"), telemetry.stage("draw")
        self._items = telemetry.gauge("replay.items")
        self._age = telemetry.gauge("replay.mean_age_inserts")
        self._oldest = telemetry.gauge("replay.max_age_inserts")
        self._drawn = telemetry.gauge("replay.sampled_priority")
        self._most = telemetry.gauge("replay.max_sampled_priority")
        self._ratio = telemetry.gauge("replay.samples_per_insert")
        self._priority = telemetry.gauge("replay.mean_priority")
        self._stale = telemetry.counter("dropped.stale_priorities")

    def step(self) -> bool:
        worked = self._follow_priorities()
        worked |= self._take_in()
        worked |= self._hand_out()
        return worked

    def _take_in(self) -> bool:
        if not self._limiter.can_insert(self._store.items_per_block):
            return False
        trajectory = self._source.take_batch()
        if trajectory is None:
            return False
        with self._adding:
            changes = self._store.add(trajectory.arrays)
            self._source.release(trajectory)
            self._sampler.apply(changes, self._first_priorities(changes.inserted))
        self._limiter.inserted(changes.inserted.size)
        self._items.set(len(self._store))
        return True

    def _first_priorities(self, inserted: np.ndarray) -> np.ndarray | None:
        if not self._initial_priorities:
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
        self._ratio.set(self._limiter.num_sampled / max(1, self._limiter.num_inserted))
        self._sampler.apply(self._store.trim())
        self._items.set(len(self._store))
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
        self._age.set(float(age.mean()))
        self._oldest.set(float(age.max()))
        if isinstance(self._sampler, PrioritizedSampler):
            priorities = self._sampler.priorities(indices)
            self._drawn.set(float(priorities.mean()))
            self._most.set(float(priorities.max()))

    def _follow_priorities(self) -> bool:
        if self._feedback is None:
            return False
        update = self._feedback.take_batch()
        if update is None:
            return False
        priorities = update["priority"]
        self._stale.add(self._sampler.update(update["item_id"], priorities))
        self._priority.set(float(priorities.mean()))
        self._feedback.release(update)
        return True

    def state(self) -> dict[str, np.ndarray]:
        parts = {"store": self._store, "sampler": self._sampler, "limiter": self._limiter}
        return {
            f"{name}.{key}": value
            for name, part in parts.items()
            for key, value in part.state().items()
        }

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        parts = {"store": self._store, "sampler": self._sampler, "limiter": self._limiter}
        for name, part in parts.items():
            prefix = f"{name}."
            part.load_state(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )
        # Actors begin new episodes after a restore: no window may run on into them.
        self._sampler.apply(self._store.end_streams())
