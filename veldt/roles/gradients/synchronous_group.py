# SPDX-License-Identifier: Apache-2.0
"""Several learners that take every step together: gradients and running statistics are reduced at
the first one, which steps and publishes; the weights board brings the result to the others. Reduce
and broadcast over the channels every backend has, so nothing blocks, and the order of summation is
fixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, load_moment_sums, moment_sums
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.ports import ExperienceSink, ExperienceSource, Gradient, GradientSink, ParameterSource
from veldt.role import Arrays
from veldt.roles.gradients.all_reduce import AllReduce
from veldt.roles.gradients.local import LocalOptimizer
from veldt.roles.gradients.meeting import ANNOUNCEMENT, Meeting
from veldt.topology import Board, Topology
from veldt.types import Field, Layout, Slot

_LEARNER, _VERSION, _ROWS = range(3)


def gradient_layout(network: NetworkFactory) -> Layout:
    """A slot that carries one learner's gradient, and what its batch adds to the statistics."""
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
    all_reduce: bool = False,
) -> list[GradientSink]:
    """The gradient sink of each learner; one learner steps by itself. `all_reduce`: learners, each
    in a process of its own, exchange over torch.distributed instead of channels."""
    if num_learners == 1:
        return [LocalOptimizer(optimizer)]
    if all_reduce:
        board = topology.board("learners", ANNOUNCEMENT)
        meetings = [Meeting(0, num_learners, board.source(), board.sink)]
        for rank in range(1, num_learners):
            meetings.append(Meeting(rank, num_learners, board.source()))
        return [AllReduce(optimizer, meeting, reduction) for meeting in meetings]
    queue = topology.queue("gradients", gradient_layout(topology.network), num_learners - 1)
    leader = GroupLeader(optimizer, queue.source(), num_learners, reduction)
    followers = (
        GroupFollower(learner, queue.sink, weights.source()) for learner in range(1, num_learners)
    )
    return [leader, *followers]


@dataclass(eq=False)
class GroupLeader(GradientSink):
    """Waits for one gradient of each learner, adds them up in the learners' order and steps. With
    the reduction "mean" each gradient weighs as much as the rows it is the mean of, so that the
    result is that of one learner with the joined batch; with "sum" they are added."""

    optimizer: OptimizerOptions
    source: ExperienceSource
    num_learners: int
    reduction: str = "mean"

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._module = flat.module
        self._optimizer = make_optimizer(self.optimizer, flat.vector[: flat.num_trained])
        device = flat.vector.device
        self._gradients = torch.zeros(self.num_learners, flat.num_trained, device=device)
        self._rows = [0] * self.num_learners
        self._statistics: torch.Tensor | None = None
        self._missing = 0
        self._version, self._scale = 0, 1.0
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._other_version = context.telemetry.counter("dropped.other_version")
        self._norm = context.telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        return self._gather() if self._missing else version

    def apply(self, gradient: Gradient) -> int | None:
        self._gradients[0].copy_(gradient.vector)
        self._rows[0] = gradient.rows
        self._statistics = moment_sums(self._module)
        self._version, self._scale = gradient.version, gradient.learning_rate_scale
        self._missing = self.num_learners - 1
        return self._gather()

    def _gather(self) -> int | None:
        assert self._statistics is not None
        while self._missing:
            batch = self.source.take_batch()
            if batch is None:
                return None
            learner, version, rows = (int(number) for number in batch["about"])
            if version == self._version:
                self._gradients[learner].copy_(torch.from_numpy(batch["gradient"]))
                self._rows[learner] = rows
                self._statistics += torch.from_numpy(batch["statistics"])
            else:  # it continues from a checkpoint that was made a moment apart
                self._gradients[learner].zero_()
                self._rows[learner] = 0
                self._other_version.add()
            self.source.release(batch)
            self._missing -= 1
        return self._step()

    def _step(self) -> int:
        if self.reduction == "mean":
            shares = self._gradients.new_tensor(self._rows) / max(1, sum(self._rows))
            self._gradients.mul_(shares.unsqueeze(1))
        total = self._gradients[0]
        for gradient in self._gradients[1:]:
            total.add_(gradient)
        if not self._optimizer.step(total, self._scale):
            self._not_finite.add()
        assert self._statistics is not None
        load_moment_sums(self._module, self._statistics)
        self._norm.set(self._optimizer.last_norm)
        return self._version + 1  # also when nothing changed: the others wait for it

    def state(self) -> Arrays:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: Arrays) -> None:
        self._optimizer.load(torch.from_numpy(state["optimizer"]))


@dataclass(eq=False)
class GroupFollower(GradientSink):
    """Any other learner: sends its gradient and has nothing to do until the step that contains it
    is published."""

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
            newest = self.weights.pull(self._vector, newer_than=-1)
            if newest is None or newest == version:
                return None
            self._flat.load(self._vector)
            self._sent, version = False, newest
        self._statistics = moment_sums(self._flat.module)  # without the batch that comes now
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
