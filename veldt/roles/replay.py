# SPDX-License-Identifier: Apache-2.0
"""Replay as a role, and the tables it keeps: uniform (DQN), prioritized (Ape-X), sequences (R2D2).

A table has a store, a sampler and a rate limiter, as in Reverb.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.losses import TransitionOptions
from veldt.losses.r2d2 import R2D2Options, sequence_priority, sequence_targets
from veldt.options.checked import Count, CountOrNone, Fraction, NotNegative, Options, Positive
from veldt.options.groups import REPLAY_OPTIONS
from veldt.ports import ExperiencePart, ExperienceSink, ExperienceSource
from veldt.replay.blocks import require_room
from veldt.replay.samplers import PrioritizedSampler, RateLimiter, UniformSampler
from veldt.replay.sequences import SequenceStore, sequence_layout
from veldt.replay.transitions import TransitionStore, transition_layout
from veldt.role import Arrays, Part, Role, entries_below
from veldt.topology import Queue, Topology
from veldt.types import (
    LAST_ACTION,
    LAST_REWARD,
    VALUE_BEST,
    VALUE_TAKEN,
    Batch,
    Field,
    Layout,
    Slot,
)

_ROOM = 1.25  # capacity of a replay with a soft cap, relative to the cap
VALUES = (VALUE_TAKEN, VALUE_BEST)
Store = TransitionStore | SequenceStore
Sampler = UniformSampler | PrioritizedSampler


class Table(Part):
    """Settings of a replay, and the store, sampler and limiter made from them."""

    options: ReplayOptions | SequenceReplayOptions
    batch_size: int
    """Items per batch."""
    batch_layout: Layout
    """What a learner gets: items and their importance weights."""

    def make_store(self) -> Store:
        raise NotImplementedError

    def make_sampler(self, store: Store) -> Sampler:
        if isinstance(self.options, PrioritizedReplayOptions | SequenceReplayOptions):
            exponents = self.options.priority_exponent, self.options.importance_exponent
            return PrioritizedSampler(store, *exponents)
        return UniformSampler(store)

    def make_limiter(self) -> RateLimiter:
        raise NotImplementedError

    def first_priorities(self, store: Any, items: np.ndarray) -> np.ndarray | None:
        """Priorities of new items from their actors' values; None: the largest one so far."""
        return None

    @property
    def priority_layout(self) -> Layout:
        """What a learner sends back."""
        items = (self.batch_size,)
        return Layout.of(item_id=Field(items, "int64"), priority=Field(items, "float32"))


def _with_weights(items: Layout, batch_size: int) -> Layout:
    return Layout((*items.fields, ("weight", Field((batch_size,), "float32"))))


@dataclass(frozen=True)
class ReplayOptions(Options):
    """What is kept, and how often it is learned from."""

    batch_size: Count = 256
    """Transitions per update."""
    replay_transitions: Count = 50_000
    """Transitions kept; the oldest go first."""
    min_replay_transitions: CountOrNone = 1_000
    """Transitions before the first update."""
    env_steps_per_update: Positive | None = 16.0
    """Environment steps per update; none: actors and learners run as fast as they can."""


@dataclass(eq=False)
class UniformTable(Table):
    """N-step transitions, drawn uniformly."""

    options: ReplayOptions
    layout: Layout
    """Of the trajectories that come in."""
    loss: TransitionOptions
    """Whose n_step and gamma cut the transitions."""
    frame_stack: int = 1
    """How many frames an image observation joins; each is kept once."""
    outputs: tuple[str, ...] = ()
    """Outputs of the policy that are kept with each row."""

    def __post_init__(self) -> None:
        options, trajectory = self.options, self._largest_insert
        self.batch_size = options.batch_size
        items = transition_layout(self.layout, self.batch_size, self.outputs)
        self.batch_layout = _with_weights(items, self.batch_size)
        room = options.replay_transitions
        require_room(self.layout, room, self.frame_stack, "replay-transitions")
        if room < max(2 * trajectory, options.min_replay_transitions):
            raise ConfigurationError(
                f"replay_transitions is {room:,}, less than two trajectories of {trajectory:,} or"
                f" min_replay_transitions ({options.min_replay_transitions:,}); raise it"
            )

    @property
    def _largest_insert(self) -> int:
        rows, columns = self.layout["first"].shape
        return (rows - 1) * columns

    def make_store(self) -> TransitionStore:
        return self._store(self.options.replay_transitions)

    def _store(self, capacity: int, **more: Any) -> TransitionStore:
        return TransitionStore(
            self.layout,
            capacity,
            n_step=self.loss.n_step,
            discount=self.loss.gamma,
            frame_stack=self.frame_stack,
            outputs=self.outputs,
            **more,
        )

    def make_limiter(self) -> RateLimiter:
        per_update = self.options.env_steps_per_update
        return RateLimiter(
            self.batch_size / per_update if per_update else None,
            self.options.min_replay_transitions,
            largest_insert=self._largest_insert,
            largest_sample=self.batch_size,
        )


@dataclass(frozen=True)
class PrioritizedReplayOptions(ReplayOptions):
    """Priorities, the soft cap and the number of batches drawn ahead."""

    actor_priorities: Annotated[bool, REPLAY_OPTIONS] = True
    """Use the actors' values for first priorities; otherwise new data enters at the maximum."""
    priority_exponent: Annotated[NotNegative, REPLAY_OPTIONS] = 0.6
    """Probability of an item: its priority to this power; 0: uniform."""
    importance_exponent: Annotated[Fraction, REPLAY_OPTIONS] = 0.4
    """How far importance weights undo the priorities' bias; 1: fully."""
    trim_period_updates: Annotated[CountOrNone, REPLAY_OPTIONS] = 100
    """Updates between two trims to replay_transitions; 0: a hard cap."""
    prefetch_batches: Annotated[Count, REPLAY_OPTIONS] = 4
    """Batches drawn ahead of the learner."""


@dataclass(eq=False)
class PrioritizedTable(UniformTable):
    """N-step transitions, drawn by priority, with Ape-X's soft cap.

    Between two trims nothing is evicted unless the room above the cap is used up. Items appear once
    all values of their actor are known."""

    options: PrioritizedReplayOptions
    outputs: tuple[str, ...] = VALUES

    def make_store(self) -> TransitionStore:
        cap, period = self.options.replay_transitions, self.options.trim_period_updates
        if not period:
            return self._store(cap, wait_for_outputs=True)
        return self._store(
            int(cap * _ROOM), wait_for_outputs=True, soft_cap=cap, trim_period=period
        )

    def first_priorities(self, store: TransitionStore, items: np.ndarray) -> np.ndarray | None:
        if not self.options.actor_priorities:
            return None
        return store.td_errors(items, VALUE_TAKEN, VALUE_BEST)


@dataclass(frozen=True)
class SequenceReplayOptions(Options):
    """What is kept of sequences, and how often it is learned from."""

    batch_sequences: Count = 32
    """Sequences per update."""
    replay_sequences: Count = 5_000
    """Sequences kept; the oldest go first."""
    min_replay_sequences: CountOrNone = 200
    """Sequences before the first update."""
    replay_ratio: Positive = 8.0
    """How often each sequence is learned from on average."""
    priority_exponent: Annotated[NotNegative, REPLAY_OPTIONS] = 0.9
    """Probability of a sequence: its priority to this power; 0: uniform."""
    importance_exponent: Annotated[Fraction, REPLAY_OPTIONS] = 0.6
    """How far importance weights undo the priorities' bias; 1: fully."""
    prefetch_batches: Annotated[Count, REPLAY_OPTIONS] = 2
    """Batches drawn ahead of the learner."""


@dataclass(eq=False)
class SequenceTable(Table):
    """Sequences with the recurrent state they began with.

    Their first priority comes from the values of the network that acted, with no second forward
    pass."""

    options: SequenceReplayOptions
    layout: Layout
    loss: R2D2Options
    """Whose constants cut and rank sequences."""
    frame_stack: int = 1

    def __post_init__(self) -> None:
        self.batch_size, r2d2 = self.options.batch_sequences, self.loss
        steps = r2d2.burn_in_steps + r2d2.unroll_steps
        names = (LAST_ACTION, LAST_REWARD, *VALUES)
        self._outputs = tuple(name for name in names if name in self.layout)
        rows = self.options.replay_sequences * r2d2.unroll_steps
        require_room(self.layout, rows, self.frame_stack, "replay-sequences")
        items = sequence_layout(self.layout, steps, self.batch_size, self._outputs)
        self.batch_layout = _with_weights(items, self.batch_size)

    def make_store(self) -> SequenceStore:
        return SequenceStore(
            self.layout,
            self.options.replay_sequences * self.loss.unroll_steps,
            burn_in=self.loss.burn_in_steps,
            unroll=self.loss.unroll_steps,
            frame_stack=self.frame_stack,
            outputs=self._outputs,
        )

    def first_priorities(self, store: SequenceStore, items: np.ndarray) -> np.ndarray:
        """Priorities of new sequences from the values of the network that acted.

        The last row's error is left out, because no action was chosen in the bootstrap row. Where
        environments reset within the step, a row with a time limit counts as an end, because the
        value after it was never computed."""
        if not items.size:
            return np.empty(0, np.float32)
        entries = store.entries(items)[store.burn_in : -1]
        arrays = {
            name: torch.from_numpy(store.blocks.arrays[name][entries])
            for name in (*VALUES, "reward", "terminated", "truncated", "ignored")
        }
        best = arrays[VALUE_BEST][1:].unsqueeze(-1)
        terminated, truncated = arrays["terminated"][:-1], arrays["truncated"][:-1]
        if store.blocks.final_leaves:
            terminated = terminated | truncated
        ignored, loss = arrays["ignored"][:-1], self.loss
        targets = sequence_targets(
            arrays["reward"][:-1],
            best,
            best,
            terminated,
            truncated,
            ignored,
            loss.gamma,
            loss.n_step,
        )
        errors = (targets - arrays[VALUE_TAKEN][:-1]).abs()
        return sequence_priority(errors, ~ignored, loss.priority_eta).numpy()

    def make_limiter(self) -> RateLimiter:
        return RateLimiter(
            self.options.replay_ratio,
            self.options.min_replay_sequences,
            largest_insert=self.layout["first"].shape[1],
            largest_sample=self.batch_size,
        )


@dataclass(eq=False)
class Replay(Role):
    """Stores the actors' trajectories and draws batches for one or several learners.

    Batches are drawn ahead, into the queue of each learner, and count for the limiter when they are
    drawn. Several learners are served in turn."""

    source: ExperienceSource
    sinks: list[ExperienceSink]
    table: Table
    feedback: ExperienceSource | None = None
    """New priorities of items that were learned from."""

    def open(self, context: NodeContext) -> None:
        self._sinks = deque(self.sinks)
        self._store = self.table.make_store()
        self._sampler = self.table.make_sampler(self._store)
        self._limiter = self.table.make_limiter()
        self._batch_size = self.table.batch_size
        self._random = context.random("sampling")
        self._telemetry = telemetry = context.telemetry
        self._adding, self._drawing = telemetry.stage("add"), telemetry.stage("draw")
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
            inserted = changes.inserted
            self._sampler.apply(changes, self.table.first_priorities(self._store, inserted))
        self._limiter.inserted(changes.inserted.size)
        lost = self._store.blocks.lost_observations
        self._show(items=len(self._store), lost_observations=lost)
        return True

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
        self._show(mean_age_inserts=slot["age"].mean())
        if isinstance(self._sampler, PrioritizedSampler):
            self._show(sampled_priority=self._sampler.priorities(indices).mean())
        sink.commit(slot)
        self._limiter.sampled(self._batch_size)
        self._sampler.apply(self._store.trim())
        ratio = self._limiter.num_sampled / max(1, self._limiter.num_inserted)
        self._show(samples_per_insert=ratio, items=len(self._store))
        return True

    def _place(self) -> tuple[ExperienceSink, Slot | None]:
        """A free slot of the learner that has waited longest."""
        for _ in range(len(self._sinks)):
            sink = self._sinks[0]
            self._sinks.rotate(-1)
            slot = sink.reserve()
            if slot is not None:
                return sink, slot
        return self._sinks[0], None

    def _show(self, **levels: float) -> None:
        for name, level in levels.items():
            self._telemetry.gauge(f"replay.{name}").set(float(level))

    def _follow_priorities(self) -> bool:
        if self.feedback is None:
            return False
        update = self.feedback.take_batch()
        if update is None:
            return False
        self._stale.add(self._sampler.update(update["item_id"], update["priority"]))
        self.feedback.release(update)
        return True

    def _parts(self) -> dict[str, Store | Sampler | RateLimiter]:
        return {"store": self._store, "sampler": self._sampler, "limiter": self._limiter}

    def state(self) -> Arrays:
        return {
            f"{name}.{key}": value
            for name, part in self._parts().items()
            for key, value in part.state().items()
        }

    def load_state(self, state: Arrays) -> None:
        for name, part in self._parts().items():
            part.load_state(entries_below(f"{name}.", state))
        # Actors begin new episodes after a restore, which no window may run into.
        self._store.end_streams()


@dataclass(eq=False)
class PrioritizedSource(ExperiencePart):
    """The learner's end of a prioritized replay: takes batches and sends priorities back."""

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


def add_replay(
    topology: Topology, trajectories: Queue, table: PrioritizedTable | SequenceTable
) -> PrioritizedSource:
    """Add a prioritized replay behind a queue of trajectories; returns the learner's source."""
    prefetch = table.options.prefetch_batches
    batches = topology.queue("batches", table.batch_layout, prefetch)
    priorities = topology.queue("priorities", table.priority_layout, prefetch + 2)
    role = Replay(trajectories.source(), [batches.sink], table, priorities.source())
    topology.add("replay", role)
    return PrioritizedSource(batches.source(), priorities.sink)
