# SPDX-License-Identifier: Apache-2.0
"""Several learners that take every step together: gradients and running statistics are reduced at
the first one, which steps and publishes; the weights board brings the result to the others. Reduce
and broadcast over the channels every backend has, so nothing blocks, and the order of summation is
fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network, load_moment_sums, moment_sums
from veldt.optimizers import OptimizerConfig, make_optimizer
from veldt.ports import ExperienceSink, ExperienceSource, GradientSink, ParameterSource
from veldt.roles.gradients.local import LocalOptimizerConfig
from veldt.topology import Board, Topology
from veldt.types import Field, Layout, Slot

_LEARNER, _VERSION, _ROWS = range(3)


def gradient_layout(network: Network) -> Layout:
    """A slot that carries one learner's gradient, and what its batch adds to the statistics."""
    return Layout.of(
        gradient=Field((FlatParameters(network).num_trained,), "float32"),
        statistics=Field(tuple(moment_sums(network).shape), "float64"),
        about=Field((3,), "int64"),
    )


def synchronous_group(
    topology: Topology,
    weights: Board,
    network: Network,
    optimizer: OptimizerConfig,
    num_learners: int,
    reduction: str,
) -> list[tuple[Callable[..., GradientSink], object]]:
    """The gradient sink of each learner and its port; one learner steps by itself."""
    if num_learners == 1:
        return [(LocalOptimizerConfig(optimizer), None)]
    gradients = topology.queue("gradients", gradient_layout(network), num_learners - 1)
    sinks: list[tuple[Callable[..., GradientSink], object]] = []
    sinks.append((GroupLeaderConfig(optimizer, num_learners, reduction), gradients.source()))
    for learner in range(1, num_learners):
        sinks.append((GroupFollowerConfig(learner), [gradients.sink, weights.source()]))
    return sinks


@dataclass(frozen=True)
class GroupLeaderConfig:
    """The first of `num_learners`. Its port is the source of the others' gradients. With the
    reduction "mean" each gradient weighs as much as the rows it is the mean of, so that the result
    is that of one learner with the joined batch; with "sum" they are added."""

    optimizer: OptimizerConfig
    num_learners: int
    reduction: str = "mean"

    def __call__(
        self, context: NodeContext, flat: FlatParameters, port: ExperienceSource
    ) -> GroupLeader:
        return GroupLeader(context, flat, port, self)


class GroupLeader(GradientSink):
    """Waits for one gradient of each learner, adds them up in the learners' order and steps."""

    def __init__(
        self,
        context: NodeContext,
        flat: FlatParameters,
        port: ExperienceSource,
        config: GroupLeaderConfig,
    ) -> None:
        self._config, self._source, self._module = config, port, flat.module
        self._optimizer = make_optimizer(config.optimizer, flat.vector[: flat.num_trained])
        device = flat.vector.device
        self._gradients = torch.zeros(config.num_learners, flat.num_trained, device=device)
        self._rows = [0] * config.num_learners
        self._statistics: torch.Tensor | None = None
        self._missing = 0
        self._version, self._scale = 0, 1.0
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._other_version = context.telemetry.counter("dropped.other_version")
        self._norm = context.telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        return self._gather() if self._missing else version

    def apply(
        self,
        gradient: torch.Tensor,
        version: int,
        learning_rate_scale: float = 1.0,
        loss: torch.Tensor | None = None,
        rows: int = 1,
    ) -> int | None:
        self._gradients[0].copy_(gradient)
        self._rows[0] = rows
        self._statistics = moment_sums(self._module)
        self._version, self._scale = version, learning_rate_scale
        self._missing = self._config.num_learners - 1
        return self._gather()

    def _gather(self) -> int | None:
        assert self._statistics is not None
        while self._missing:
            batch = self._source.take_batch()
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
            self._source.release(batch)
            self._missing -= 1
        return self._step()

    def _step(self) -> int:
        if self._config.reduction == "mean":
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

    def newest_version(self, version: int) -> int:
        return version

    def state(self) -> dict[str, np.ndarray]:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._optimizer.state_vector.copy_(torch.from_numpy(state["optimizer"]))


@dataclass(frozen=True)
class GroupFollowerConfig:
    """Any other learner. Its ports are the sink of gradients and the board of the new weights."""

    learner: int

    def __call__(
        self, context: NodeContext, flat: FlatParameters, port: Sequence[object]
    ) -> GroupFollower:
        return GroupFollower(flat, port, self.learner)


class GroupFollower(GradientSink):
    """Sends its gradient and has nothing to do until the step that contains it is published."""

    def __init__(self, flat: FlatParameters, port: Sequence[object], learner: int) -> None:
        sink, weights = port
        self._sink: ExperienceSink = sink  # type: ignore[assignment]
        self._weights: ParameterSource = weights  # type: ignore[assignment]
        self._flat, self._learner = flat, learner
        self._slot: Slot | None = None
        self._sent = False
        self._vector = np.empty(flat.size, np.float32)
        self._statistics = moment_sums(flat.module)

    def begin(self, version: int) -> int | None:
        if self._sent:
            newest = self._weights.pull(self._vector, newer_than=-1)
            if newest is None or newest == version:
                return None
            self._flat.load(self._vector)
            self._sent, version = False, newest
        self._statistics = moment_sums(self._flat.module)  # without the batch that comes now
        if self._slot is None:
            self._slot = self._sink.reserve()
        return version if self._slot is not None else None

    def apply(
        self,
        gradient: torch.Tensor,
        version: int,
        learning_rate_scale: float = 1.0,
        loss: torch.Tensor | None = None,
        rows: int = 1,
    ) -> int | None:
        assert self._slot is not None
        torch.from_numpy(self._slot["gradient"]).copy_(gradient)
        added = moment_sums(self._flat.module) - self._statistics
        self._slot["statistics"][:] = added.numpy()
        about = self._slot["about"]
        about[_LEARNER], about[_VERSION], about[_ROWS] = self._learner, version, rows
        self._sink.commit(self._slot)
        self._slot, self._sent = None, True
        return None

    def newest_version(self, version: int) -> int:
        return version

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...
