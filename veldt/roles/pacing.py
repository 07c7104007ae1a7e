# SPDX-License-Identifier: Apache-2.0
"""Pacing: how far collection may run ahead of learning, as one rule for actors and learner.

Batch k contains `share` trajectories of each group of environments, always in the same places. A
trajectory of batch k begins when version k - eta of the weights is there, and acts with exactly
that version. So each row is `eta` updates old when it is learned from (those of the first batches
less, as there are no older weights), and the result does not depend on timing: a run on processes
has the bits of a serial one.

eta 0 is a barrier (A2C, PPO). With 1 actors collect a batch while the learner learns from the one
before (Sebulba); larger values absorb more variation in speed (AReaL). Without pacing (IMPALA) only
the queue's length bounds lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from veldt.context import NodeContext
from veldt.options.checked import Bounds
from veldt.ports import ExperiencePart, ExperienceSource, ParameterSource
from veldt.role import Part
from veldt.topology import Queue
from veldt.types import PROVENANCE_ACTOR, PROVENANCE_TURN, Batch, Layout

if TYPE_CHECKING:
    from veldt.problem import Problem

Eta = Annotated[int, Bounds(0, 1000)]


@dataclass(eq=False)
class Pacing(Part):
    """When trajectories begin, and with which weights.

    The trajectories of a group are counted by turns, which begin at the first version of the run:
    turn n belongs to batch n // `share`."""

    weights: ParameterSource
    eta: int = 0
    """Batches that may be collected ahead of the one that is learned from."""
    share: int = 1
    """Trajectories of each group in a batch."""

    def slots(self, num_groups: int) -> int:
        """Slots of the queue of trajectories: all that may be begun and not learned from."""
        return (self.eta + 2) * self.share * num_groups

    def batches(
        self, trajectories: Queue, problem: Problem, groups_per_actor: int = 1
    ) -> PacedBatches:
        """The learner's source of batches."""
        return PacedBatches(
            trajectories.source(),
            trajectories.spec.layout,
            self,
            groups_per_actor * problem.num_actors,
            problem.spec.rows_per_env_step,
            None if problem.schedule is None else problem.schedule.env_steps,
        )

    def next_turn(self, turn: int) -> int | None:
        """`turn`, or a later one if the learner has gone on without it because the actor had died;
        None while it must wait."""
        newest = self.weights.version()
        turn = max(turn, newest * self.share)
        return turn if newest >= self.version(turn) else None

    def version(self, turn: int) -> int:
        """The version of the weights that a trajectory acts with."""
        return turn // self.share - self.eta


@dataclass(eq=False)
class PacedBatches(ExperiencePart):
    """Joins the trajectories of each batch, in an order that does not depend on timing.

    With `eta` above 0 it also counts the run's env steps, where otherwise actors do, and the batch
    that reaches `total_env_steps` is the last: how much more was collected depends on timing. With
    eta 0 the run ends before this batch is complete, so nothing is learned from it.

    Trajectories are held until the batch is released, so that none is lost with a learner that
    dies."""

    source: ExperienceSource
    """Gives one trajectory at a time."""
    layout: Layout
    """Of a trajectory."""
    pacing: Pacing
    num_groups: int
    rows_per_env_step: int
    total_env_steps: int | None

    @property
    def num_places(self) -> int:
        """Trajectories in a batch."""
        return self.num_groups * self.pacing.share

    def open(self, context: NodeContext) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        for name, field in self.layout.fields if self.num_places > 1 else ():
            shape = list(field.shape)
            shape[field.join_axis] *= self.num_places
            self._arrays[name] = np.zeros(shape, field.dtype)
        self._placed: dict[int, Batch] = {}
        """Trajectories of the current batch, by their places."""
        self._early: dict[tuple[int, int], Batch] = {}
        """Trajectories of later batches, by the number of the batch and their place."""
        counted = "env_steps" if self.pacing.eta else "paced_env_steps"
        self._env_steps = context.telemetry.counter(counted)
        self._repeated = context.telemetry.counter("dropped.repeated_trajectory")

    def take_batch(self) -> Batch | None:
        if self._is_over():
            return None
        number = self.pacing.weights.version()
        for key in [each for each in self._early if each[0] <= number]:
            self._place(self._early.pop(key), number)
        while len(self._placed) < self.num_places:
            taken = self.source.take_batch()
            if taken is None:
                return None
            self._place(taken, number)
        batch = Batch(self._arrays, memory_stays=True) if self._arrays else self._placed[0]
        ignored = batch["ignored"][:-1]
        rows = ignored.size - int(np.count_nonzero(ignored))
        self._batch_env_steps = rows / self.rows_per_env_step
        is_last = self._is_over(self._batch_env_steps)
        return None if is_last and not self.pacing.eta else batch

    def _is_over(self, more: float = 0.0) -> bool:
        total = self.total_env_steps
        return total is not None and self._env_steps.value + more >= total

    def _place(self, trajectory: Batch, number: int) -> None:
        """Copy a trajectory to its place in batch `number`, or keep it for a later one."""
        about, share = trajectory["provenance"][0], self.pacing.share
        batch, part = divmod(int(about[PROVENANCE_TURN]), share)
        place = int(about[PROVENANCE_ACTOR]) * share + part
        if batch > number and (batch, place) not in self._early:
            self._early[batch, place] = trajectory
            return
        if batch != number or place in self._placed:
            self._repeated.add()  # a predecessor of the actor or of the learner had it too
            self.source.release(trajectory)
            return
        self._placed[place] = trajectory
        for name, array in self._arrays.items():
            axis = self.layout[name].join_axis
            width = trajectory[name].shape[axis]
            span = slice(place * width, (place + 1) * width)
            array[(slice(None),) * axis + (span,)] = trajectory[name]

    def release(self, batch: Batch) -> None:
        self._env_steps.add(self._batch_env_steps)
        for trajectory in self._placed.values():
            self.source.release(trajectory)
        self._placed.clear()
