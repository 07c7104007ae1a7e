# SPDX-License-Identifier: Apache-2.0
"""What a replay keeps, how it draws and how often: uniform (DQN), prioritized (Ape-X), sequences
(R2D2). One table has a store, a sampler and a rate limiter, as in Reverb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from veldt.errors import ConfigurationError
from veldt.losses.options import TransitionOptions
from veldt.losses.r2d2 import R2D2Options, sequence_priority, sequence_targets
from veldt.options.checked import Count, CountOrNone, Fraction, NotNegative, Options, Positive
from veldt.replay import (
    Fifo,
    LowestPriority,
    PrioritizedSampler,
    RateLimiter,
    SequenceStore,
    SoftCap,
    TransitionStore,
    UniformSampler,
)
from veldt.replay.blocks import require_room
from veldt.replay.sequences import sequence_layout
from veldt.replay.transitions import transition_layout
from veldt.role import Part
from veldt.types import LAST_ACTION, LAST_REWARD, VALUE_BEST, VALUE_TAKEN, Field, Layout

_ROOM = 1.25  # memory of a softly capped replay, in terms of its cap
VALUES = (VALUE_TAKEN, VALUE_BEST)
Store: TypeAlias = "TransitionStore | RankedSequences"
Sampler = UniformSampler | PrioritizedSampler


class Table(Part):
    """The settings of a replay, which makes its store, sampler and limiter from them."""

    batch_size: int
    """Items per batch."""
    batch_layout: Layout
    """What a learner gets: items and their importance weights."""
    actors_rank: bool = False
    """Whether the first priority of an item comes from the values its actor computed."""

    def make_store(self) -> Store:
        raise NotImplementedError

    def make_sampler(self, store: Store) -> Sampler:
        raise NotImplementedError

    def make_limiter(self) -> RateLimiter:
        raise NotImplementedError

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
    """Environment steps for each update; none: actors and learners run as fast as they can."""


@dataclass(eq=False)
class UniformTable(Table):
    """A plain ring of n-step transitions; every one as likely as another."""

    options: ReplayOptions
    layout: Layout
    """Of the trajectories that come in."""
    loss: TransitionOptions
    """Whose n_step and gamma cut the transitions."""
    frame_stack: int = 1
    """How many frames an image observation joins; each is kept once."""
    outputs: tuple[str, ...] = ()
    """Fields of the policy that are kept with each row."""

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

    def make_sampler(self, store: Store) -> Sampler:
        return UniformSampler(store)

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
    """What is learned from first, and how much of it waits."""

    actor_priorities: bool = True
    """Use the actors' values for first priorities; otherwise new data enters at the maximum."""
    priority_exponent: NotNegative = 0.6
    """Probability of an item: its priority to this power; 0: uniform."""
    importance_exponent: Fraction = 0.4
    """How far importance weights undo the priorities' bias; 1: fully."""
    trim_period_updates: CountOrNone = 100
    """Updates between two trims to replay_transitions; 0: a hard cap."""
    eviction: Literal["oldest", "lowest_priority"] = "oldest"
    """Who leaves first; lowest_priority (Ape-X DPG's) goes with a hard cap."""
    prefetch_batches: Count = 4
    """Batches that wait for the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eviction == "lowest_priority" and self.trim_period_updates:
            raise ConfigurationError(
                "eviction lowest_priority needs a hard cap; add --trim-period-updates 0"
            )


@dataclass(eq=False)
class PrioritizedTable(UniformTable):
    """Softly capped: nothing is evicted between two trims unless the room above the cap is used up.
    Items appear once their actor's values are all there."""

    options: PrioritizedReplayOptions
    outputs: tuple[str, ...] = VALUES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.actors_rank = self.options.actor_priorities

    def make_store(self) -> TransitionStore:
        cap, period = self.options.replay_transitions, self.options.trim_period_updates
        remover = SoftCap(cap, period) if period else Fifo()
        capacity = int(cap * _ROOM) if period else cap
        return self._store(capacity, wait_for_outputs=True, remover=remover)

    def make_sampler(self, store: Store) -> Sampler:
        options = self.options
        sampler = PrioritizedSampler(
            store, alpha=options.priority_exponent, beta=options.importance_exponent
        )
        if options.eviction == "lowest_priority":
            store.remover = LowestPriority(sampler)
        return sampler


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
    priority_exponent: NotNegative = 0.9
    """Probability of a sequence: its priority to this power; 0: uniform."""
    importance_exponent: Fraction = 0.6
    """How far importance weights undo the priorities' bias; 1: fully."""
    prefetch_batches: Count = 2
    """Batches that wait for the learner."""


@dataclass(eq=False)
class SequenceTable(Table):
    """Sequences with the recurrent state they began with, ranked by what the acting network thought
    of them. The first priority needs no second forward pass and no target network."""

    options: SequenceReplayOptions
    layout: Layout
    loss: R2D2Options
    """Whose constants cut and rank sequences."""
    frame_stack: int = 1
    actors_rank: bool = True

    def __post_init__(self) -> None:
        self.batch_size, r2d2 = self.options.batch_sequences, self.loss
        steps = r2d2.burn_in_steps + r2d2.unroll_steps
        kept = kept_outputs(self.layout)
        rows = self.options.replay_sequences * r2d2.unroll_steps
        require_room(self.layout, rows, self.frame_stack, "replay-sequences")
        items = sequence_layout(self.layout, steps, self.batch_size, kept)
        self.batch_layout = _with_weights(items, self.batch_size)

    def make_store(self) -> RankedSequences:
        return RankedSequences(
            self.layout,
            self.options.replay_sequences * self.loss.unroll_steps,
            self.loss,
            self.frame_stack,
        )

    def make_sampler(self, store: Store) -> Sampler:
        options = self.options
        return PrioritizedSampler(
            store, alpha=options.priority_exponent, beta=options.importance_exponent
        )

    def make_limiter(self) -> RateLimiter:
        return RateLimiter(
            self.options.replay_ratio,
            self.options.min_replay_sequences,
            largest_insert=self.layout["first"].shape[1],
            largest_sample=self.batch_size,
        )


def kept_outputs(trajectories: Layout) -> tuple[str, ...]:
    """What a replay of sequences keeps beside observations, actions and what followed."""
    return tuple(name for name in (LAST_ACTION, LAST_REWARD, *VALUES) if name in trajectories)


class RankedSequences(SequenceStore):
    """A SequenceStore that knows how much its sequences surprised whoever acted."""

    def __init__(self, layout: Layout, capacity: int, r2d2: R2D2Options, frame_stack: int) -> None:
        super().__init__(
            layout,
            capacity,
            burn_in=r2d2.burn_in_steps,
            unroll=r2d2.unroll_steps,
            frame_stack=frame_stack,
            outputs=kept_outputs(layout),
        )
        self._gamma, self._n_step, self._eta = r2d2.gamma, r2d2.n_step, r2d2.priority_eta

    def td_errors(self, items: np.ndarray, taken: str, best: str) -> np.ndarray:
        """Priorities of `items` from the values kept with their rows.

        The bootstrap row has been seen but not acted upon yet, so the last row's error is left out.
        Where environments reset within the step, the value after a time limit was never computed:
        such a row counts as an end."""
        if not items.size:
            return np.empty(0, np.float32)
        entries = self._entries(items)[self.burn_in : -1]
        arrays = {
            name: torch.from_numpy(self.blocks.arrays[name][entries])
            for name in (taken, best, "reward", "terminated", "truncated", "ignored")
        }
        next_best = arrays[best][1:].unsqueeze(-1)
        terminated, truncated = arrays["terminated"][:-1], arrays["truncated"][:-1]
        if self.blocks.final_leaves:
            terminated = terminated | truncated
        ignored = arrays["ignored"][:-1]
        targets = sequence_targets(
            arrays["reward"][:-1],
            next_best,
            next_best,
            terminated,
            truncated,
            ignored,
            self._gamma,
            self._n_step,
        )
        errors = (targets - arrays[taken][:-1]).abs()
        return sequence_priority(errors, ~ignored, self._eta).numpy()
