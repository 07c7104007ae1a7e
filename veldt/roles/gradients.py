# SPDX-License-Identifier: Apache-2.0
"""Learners that step their own weights, alone or as a group that takes every step together.

The first learner of a group adds up all gradients and running statistics in the learners' order,
steps and publishes; the others take the result from the weights board.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, load_moment_sums, moment_sums
from veldt.optimizers import Optimizer, OptimizerOptions, make_optimizer
from veldt.ports import (
    DeviceStep,
    ExperienceSink,
    ExperienceSource,
    Gradient,
    GradientSink,
    ParameterSource,
)
from veldt.role import Arrays
from veldt.telemetry.counters import Counter
from veldt.topology import Board, Topology
from veldt.types import Field, Layout, Slot


@dataclass(eq=False)
class LocalOptimizer(GradientSink):
    """Steps the learner's own vector in place; a gradient that is not finite is dropped whole.

    `others` are submodules with an optimizer of their own (an actor beside its critic); the
    remaining weights must be contiguous."""

    optimizer: OptimizerOptions
    others: dict[str, OptimizerOptions] = field(default_factory=dict)

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        telemetry = context.telemetry
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._gradient = flat.gradient
        self._parts: dict[str, tuple[slice, Optimizer, Counter]] = {}
        for name, span in self._spans(flat):
            options, prefix = self.others.get(name, self.optimizer), f"{name}." if name else ""
            optimizer = make_optimizer(options, flat.vector[span])
            self._parts[name] = (span, optimizer, telemetry.gauge(f"{prefix}gradient_norm"))

    def _spans(self, flat: FlatParameters) -> Iterator[tuple[str, slice]]:
        """The weights of each optimizer; the main one, which has the rest, has no name."""
        rest = np.ones(flat.num_trained, bool)
        for name in self.others:
            rest[flat.span(name)] = False
            yield name, flat.span(name)
        [places] = np.nonzero(rest)
        if places.size:
            span = slice(int(places[0]), int(places[-1]) + 1)
            if places.size != span.stop - span.start:
                raise ValueError("the weights without an optimizer of their own are not together")
            yield "", span

    def apply(self, gradient: Gradient) -> int:
        for span, optimizer, norm in self._parts.values():
            own = gradient.vector[span]
            # Without any gradient a part keeps its momentum, too (TD3's delayed actor).
            if self.others and not own.any():
                continue
            if not optimizer.step(own, gradient.learning_rate_scale):
                self._not_finite.add()
            norm.set(optimizer.last_norm)
        return gradient.version + 1  # even if nothing changed, because actors may wait for it

    def device_step(self) -> DeviceStep | None:
        if self.others:  # the host decides which of them have a gradient
            return None
        [(span, optimizer, _)] = self._parts.values()
        device = optimizer.vector.device
        self._device_norm = torch.zeros((), device=device)
        self._device_drops = torch.zeros((), device=device)

        def step(learning_rate_scale: torch.Tensor) -> None:
            norm = optimizer.step_on_device(self._gradient[span], learning_rate_scale)
            self._device_norm.copy_(norm)
            self._device_drops.add_(~torch.isfinite(norm))

        return step

    def count_device_steps(self) -> None:
        [(_, _, gauge)] = self._parts.values()
        norm, drops = torch.stack((self._device_norm, self._device_drops)).tolist()
        gauge.set(norm)
        if drops:
            self._not_finite.add(int(drops))
            self._device_drops.zero_()

    def state(self) -> Arrays:
        found = ((name or "main", optimizer) for name, (_, optimizer, _) in self._parts.items())
        return {f"{name}.optimizer": each.state_vector.cpu().numpy() for name, each in found}

    def load_state(self, state: Arrays) -> None:
        for name, (_, optimizer, _) in self._parts.items():
            saved = torch.from_numpy(state[f"{name or 'main'}.optimizer"])
            optimizer.load(saved)


_LEARNER, _VERSION, _ROWS = range(3)


def gradient_layout(network: NetworkFactory) -> Layout:
    """Layout of one learner's gradient and of what its batch adds to the statistics."""
    return Layout.of(
        gradient=Field((network.num_trained(),), "float32"),
        statistics=Field(tuple(moment_sums(network.blank()).shape), "float64"),
        about=Field((3,), "int64"),
    )


def synchronous_group(
    topology: Topology,
    weights: Board,
    optimizer: OptimizerOptions,
    num_learners: int,
    reduction: str,
) -> list[GradientSink]:
    """The gradient sink of each learner; a single learner steps by itself.

    Args:
        topology: Gets the queue of gradients to the first learner, which steps for all.
        weights: Board from which the others take the weights.
        optimizer: Of the first learner.
        num_learners: Each has a sink, in their order.
        reduction: sum or mean of the learners' gradients.
    """
    if num_learners == 1:
        return [LocalOptimizer(optimizer)]
    queue = topology.queue("gradients", gradient_layout(topology.network), num_learners - 1)
    leader = GroupLeader(optimizer, queue.source(), num_learners, reduction)
    followers = (
        GroupFollower(learner, queue.sink, weights.source()) for learner in range(1, num_learners)
    )
    return [leader, *followers]


@dataclass(eq=False)
class GroupLeader(GradientSink):
    """Waits for a gradient of each learner, adds them up and steps.

    With the reduction "mean" each gradient weighs as much as the rows it is the mean of, so that
    the result is that of one learner with the joined batch; with "sum" they are added."""

    optimizer: OptimizerOptions
    source: ExperienceSource
    num_learners: int
    reduction: str = "mean"

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._module = flat.module
        self._optimizer = make_optimizer(self.optimizer, flat.vector[: flat.num_trained])
        device, count = flat.vector.device, self.num_learners
        self._gradients = torch.zeros(count, flat.num_trained, device=device)
        self._statistics = [torch.zeros_like(moment_sums(self._module)) for _ in range(count)]
        self._rows = [0] * count
        self._versions = [-1] * count
        """Version of the weights of each learner's newest gradient."""
        self._gathering = False
        self._scale = 1.0
        # Followers whose gradients were lost with the predecessor wait for its step.
        self._skips_version = context.incarnation > 0
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._other_version = context.telemetry.counter("dropped.other_version")
        self._norm = context.telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        if self._skips_version:
            self._skips_version = False
            return version + 1
        return self._gather() if self._gathering else version

    def apply(self, gradient: Gradient) -> int | None:
        self._store(0, gradient.version, gradient.rows, gradient.vector, moment_sums(self._module))
        self._scale, self._gathering = gradient.learning_rate_scale, True
        return self._gather()

    def _store(
        self, learner: int, version: int, rows: int, gradient: torch.Tensor, sums: torch.Tensor
    ) -> None:
        self._gradients[learner].copy_(gradient)
        self._statistics[learner].copy_(sums)
        self._versions[learner], self._rows[learner] = version, rows

    def _gather(self) -> int | None:
        version = self._versions[0]
        # A newer gradient, of a learner that resumed from a later checkpoint, is kept until this
        # learner reaches its version.
        while min(self._versions) < version:
            batch = self.source.take_batch()
            if batch is None:
                return None
            learner, of_version, rows = (int(number) for number in batch["about"])
            gradient, sums = (torch.from_numpy(batch[n]) for n in ("gradient", "statistics"))
            self._store(learner, of_version, rows, gradient, sums)
            if of_version != version:
                self._other_version.add()
            self.source.release(batch)
        self._gathering = False
        return self._step([entry == version for entry in self._versions])

    def _step(self, takes_part: list[bool]) -> int:
        members = [learner for learner, present in enumerate(takes_part) if present]
        num_rows = max(1, sum(self._rows[learner] for learner in members))
        total = self._gradients[0]
        statistics = self._statistics[0]
        for learner in members:
            gradient = self._gradients[learner]
            if self.reduction == "mean":
                gradient.mul_(self._rows[learner] / num_rows)
            if learner:
                total.add_(gradient)
                statistics.add_(self._statistics[learner])
        if not self._optimizer.step(total, self._scale):
            self._not_finite.add()
        load_moment_sums(self._module, statistics)
        self._norm.set(self._optimizer.last_norm)
        return self._versions[0] + 1  # even if nothing changed, because followers wait for it

    def state(self) -> Arrays:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: Arrays) -> None:
        self._optimizer.load(torch.from_numpy(state["optimizer"]))


@dataclass(eq=False)
class GroupFollower(GradientSink):
    """Any other learner: sends its gradient and waits for the step that contains it."""

    learner: int
    sink: ExperienceSink
    weights: ParameterSource

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._flat = flat
        self._slot: Slot | None = None
        self._sent = False
        self._vector = np.empty(flat.size, np.float32)
        self._statistics = moment_sums(flat.module)

    def begin(self, version: int) -> int | None:
        if self._sent:
            newest = self.weights.pull(self._vector, newer_than=version)
            if newest is None:
                return None
            self._flat.load(self._vector)
            self._sent, version = False, newest
        self._statistics = moment_sums(self._flat.module)  # before the next batch
        if self._slot is None:
            self._slot = self.sink.reserve()
        return version if self._slot is not None else None

    def apply(self, gradient: Gradient) -> None:
        assert self._slot is not None
        torch.from_numpy(self._slot["gradient"]).copy_(gradient.vector)
        added = moment_sums(self._flat.module) - self._statistics
        self._slot["statistics"][:] = added.numpy()
        about = self._slot["about"]
        about[_LEARNER], about[_VERSION] = self.learner, gradient.version
        about[_ROWS] = gradient.rows
        self.sink.commit(self._slot)
        self._slot, self._sent = None, True
