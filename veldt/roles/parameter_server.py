# SPDX-License-Identifier: Apache-2.0
"""A parameter server cut into shards, and the learner's side of it (DistBelief, Gorila).

Any number of learners send gradients without a barrier. Gradients that are too old, unusual or not
finite are dropped and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, NetworkFactory
from veldt.optimizers import OptimizerOptions, clip_by_global_norm, make_optimizer
from veldt.options.checked import Count, CountOrNone, Nodes, NotNegative, Options
from veldt.options.groups import SERVER_OPTIONS
from veldt.ports import (
    ExperienceSink,
    ExperienceSource,
    Gradient,
    GradientSink,
    ParameterSink,
    ParameterSource,
)
from veldt.role import Arrays, Part, Role
from veldt.topology import Topology
from veldt.types import Field, Layout, Parameters, Slot


@dataclass(frozen=True)
class OutlierOptions(Options):
    """When a gradient is refused because of its loss."""

    outlier_deviations: Annotated[NotNegative, SERVER_OPTIONS] = 6.0
    """Refuse gradients whose |loss| is this many deviations above its running mean; 0: never."""
    outlier_memory_gradients: Annotated[Count, SERVER_OPTIONS] = 200
    """Gradients in the running mean and deviation; none is refused before that many."""


class OutlierFilter:
    """Refuses losses far above the running mean of |loss|.

    A refused loss counts as if it were at the bound, so the filter follows a lasting change of
    scale, while a single outlier hardly moves the bound."""

    def __init__(self, options: OutlierOptions) -> None:
        self._options = options
        self.mean = self.square = 0.0
        self.seen = 0

    @property
    def bound(self) -> float:
        """The largest |loss| that is accepted now."""
        options = self._options
        if not options.outlier_deviations or self.seen < options.outlier_memory_gradients:
            return math.inf
        deviation = math.sqrt(max(0.0, self.square - self.mean**2))
        return self.mean + options.outlier_deviations * deviation

    def accepts(self, loss: float) -> bool:
        """Whether the loss is finite and within the bound; updates the statistics."""
        size, bound = abs(loss), self.bound
        if not math.isfinite(size):
            return False
        counted = min(size, bound)
        self.seen += 1
        share = 1.0 / min(self.seen, self._options.outlier_memory_gradients)
        self.mean += share * (counted - self.mean)
        self.square += share * (counted**2 - self.square)
        return size <= bound

    def state(self) -> np.ndarray:
        return np.array([self.mean, self.square, self.seen])

    def load_state(self, state: np.ndarray) -> None:
        self.mean, self.square, self.seen = float(state[0]), float(state[1]), int(state[2])


@dataclass(frozen=True)
class Shard:
    """A slice of the flat vector: weights, and in the last one also the running statistics."""

    part: slice
    num_trained: int

    @property
    def trained(self) -> slice:
        """The part that has gradients."""
        return slice(self.part.start, self.part.start + self.num_trained)

    @property
    def layout(self) -> Layout:
        """Layout of a learner's message: its slice of the gradient, its version and its loss.

        Statistics (of an observation normaliser) replace the last ones, because they are an
        estimate and not a step."""
        num_statistics = self.part.stop - self.part.start - self.num_trained
        return Layout.of(
            gradient=Field((self.num_trained,), "float32"),
            statistics=Field((num_statistics,), "float32"),
            version=Field((1,), "int64"),
            loss=Field((1,), "float32"),
            learning_rate_scale=Field((1,), "float32"),
        )


def shards(network: NetworkFactory, num_shards: int) -> list[Shard]:
    """Consecutive slices of a network's vector, with equal shares of the trained part. The running
    statistics that follow it belong to the last one."""
    flat = FlatParameters(network.blank())
    if num_shards > flat.num_trained:
        raise ConfigurationError(f"num_shards is {num_shards}; use 1 to {flat.num_trained:,}")
    bounds = [flat.num_trained * shard // num_shards for shard in range(num_shards)] + [flat.size]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    return [Shard(part, min(part.stop, flat.num_trained) - part.start) for part in parts]


@dataclass(eq=False)
class ShardedSource(Part):
    """Pulls the slices of all shards, which may be a few updates apart.

    Its version is that of the oldest slice. It must always pull into the same vector, because it
    only copies slices that have changed."""

    shards: list[Shard]
    boards: list[ParameterSource]

    def __post_init__(self) -> None:
        self.versions = [-1] * len(self.shards)
        """The version of each slice at the last pull."""

    def pull(self, into: np.ndarray, newer_than: int, at_most: int | None = None) -> int | None:
        changed = False
        for index, (board, shard) in enumerate(zip(self.boards, self.shards, strict=True)):
            newest = board.pull(into[shard.part], self.versions[index], at_most)
            if newest is not None:
                self.versions[index], changed = newest, True
        return min(self.versions) if changed else None

    def version(self) -> int:
        return min(board.version() for board in self.boards)


@dataclass(eq=False)
class Server(Part):
    """The learner's ends of all shards: a queue of gradients and a board of weights for each."""

    shards: list[Shard]
    queues: list[ExperienceSink]
    boards: list[ParameterSource]

    def weights(self) -> ShardedSource:
        return ShardedSource(self.shards, self.boards)


@dataclass(frozen=True)
class ServerOptions(OutlierOptions):
    """Number of shards, and which gradients they accept."""

    num_shards: Nodes = 2
    """Nodes that each hold a slice of the weights."""
    max_gradient_age_updates: Annotated[CountOrNone, SERVER_OPTIONS] = 50
    """The server refuses gradients of weights that are more updates old than this."""


@dataclass(eq=False)
class ParameterServer(Role):
    """A shard: applies one gradient per `step` and publishes its slice.

    Every accepted gradient is one version."""

    gradients: ExperienceSource
    weights: ParameterSink
    initial: ParameterSource
    shard: Shard
    optimizer: OptimizerOptions
    options: ServerOptions

    def open(self, context: NodeContext) -> None:
        shard = self.shard
        self._vector = np.empty(shard.part.stop - shard.part.start, np.float32)
        version = self.initial.pull(self._vector, newer_than=-1)
        if version is None:
            raise RuntimeError("the board holds no initial weights")
        self._version = version
        self._statistics = self._vector[shard.num_trained :]
        trained = torch.from_numpy(self._vector)[: shard.num_trained]
        # Learners clip before they send, because a norm is that of the whole gradient.
        optimizer = replace(self.optimizer, max_grad_norm=0.0)
        self._optimizer = make_optimizer(optimizer, trained)
        self._outliers = OutlierFilter(self.options)
        self._moments = self._optimizer.state_vector.numpy()
        telemetry = context.telemetry
        self._applying, self._publishing = telemetry.stage("apply"), telemetry.stage("publish")
        # Every shard takes every gradient, so a run's updates are those of one shard.
        self._updates = telemetry.counter("shard_updates" if context.index else "updates")
        self._stale = telemetry.counter("dropped.stale")
        self._unusual = telemetry.counter("dropped.outlier")
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._age = telemetry.gauge("gradient_age_updates")

    def step(self) -> bool:
        batch = self.gradients.take_batch()
        if batch is None:
            return False
        with self._applying:
            is_accepted = self._take(batch.arrays)
        self.gradients.release(batch)
        if is_accepted:
            self._version += 1
            self._updates.add()
            with self._publishing:
                self.weights.publish(Parameters(self._vector, self._version))
        return True

    def _take(self, sent: Arrays) -> bool:
        """Apply a gradient or drop it; whether it was accepted."""
        age = self._version - int(sent["version"][0])
        self._age.set(age)
        if age > self.options.max_gradient_age_updates:
            self._stale.add()
            return False
        if not self._outliers.accepts(float(sent["loss"][0])):
            self._unusual.add()
            return False
        gradient = torch.from_numpy(sent["gradient"])
        if not self._optimizer.step(gradient, float(sent["learning_rate_scale"][0])):
            self._not_finite.add()
            return False
        self._statistics[:] = sent["statistics"]
        return True

    def state(self) -> Arrays:
        return {
            "vector": self._vector,
            "version": np.array(self._version),
            "optimizer": self._moments,
            "outliers": self._outliers.state(),
        }

    def load_state(self, state: Arrays) -> None:
        # The board of a shard that died has newer weights than the last checkpoint. Other nodes use
        # them already, and versions never decrease.
        if int(state["version"]) >= self._version:
            self._vector[:] = state["vector"]
            self._version = int(state["version"])
        self._moments[:] = state["optimizer"]
        self._outliers.load_state(state["outliers"])


def add_parameter_server(
    topology: Topology,
    network: NetworkFactory,
    optimizer: OptimizerOptions,
    options: ServerOptions,
    num_learners: int,
) -> Server:
    """Add the shards, each with a queue for gradients and a board for weights.

    Args:
        topology: Gets one node per shard.
        network: Whose weights are split.
        optimizer: Of each shard.
        options: The number of shards and the oldest gradients that they apply.
        num_learners: Learners that send gradients, for the length of the queues.
    """
    initial, server = network.initial_vector(), Server(shards(network, options.num_shards), [], [])
    for number, shard in enumerate(server.shards):
        queue = topology.queue(f"gradients-{number}", shard.layout, 2 * num_learners)
        board = topology.board(f"weights-{number}", initial[shard.part])
        role = ParameterServer(
            queue.source(), board.sink, board.source(), shard, optimizer, options
        )
        topology.add("parameter_server", role)
        server.queues.append(queue.sink)
        server.boards.append(board.source())
    topology.weights = tuple(f"weights-{number}" for number in range(options.num_shards))
    return server


@dataclass(frozen=True)
class DownpourOptions(Options):
    """How often a learner pulls and sends (Dean et al., 2012: n_fetch and n_push)."""

    fetch_period_gradients: Annotated[Count, SERVER_OPTIONS] = 1
    """Gradients that a learner computes between two pulls of weights."""
    push_period_gradients: Annotated[Count, SERVER_OPTIONS] = 1
    """Gradients that a learner adds up before it sends their sum."""


@dataclass(eq=False)
class RemoteGradients(GradientSink):
    """Sends each shard its slice of the gradient and pulls the weights that result.

    The learner never steps its own weights. A gradient with an unusual loss is not sent."""

    server: Server
    options: OutlierOptions
    max_grad_norm: float = 0.0
    downpour: DownpourOptions = DownpourOptions()

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._flat, self._source = flat, self.server.weights()
        self._pulled = np.empty(flat.size, np.float32)
        self._slots: list[Slot | None] = [None for _ in self.server.shards]
        self._outliers = OutlierFilter(self.options)
        self._sum = np.zeros(flat.num_trained, np.float32)
        self._counts = np.zeros(2, np.int64)
        """Gradients since the last fetch, and those in the sum."""
        telemetry = context.telemetry
        self._unusual = telemetry.counter("dropped.outlier")
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._sent = telemetry.counter("gradients_sent")
        self._norm = telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        """Pull new weights; the learner's weights change nowhere else."""
        if not self._reserve():
            return None
        if 0 < self._counts[0] < self.downpour.fetch_period_gradients:
            return version
        self._counts[0] = 0
        newer = self._source.pull(self._pulled, newer_than=version)
        if newer is None:
            return version
        self._flat.load(self._pulled)
        return newer

    def _reserve(self) -> bool:
        """Reserve a slot for every shard; whether all have one."""
        for index, queue in enumerate(self.server.queues):
            self._slots[index] = self._slots[index] or queue.reserve()
        return all(self._slots)

    def apply(self, gradient: Gradient) -> None:
        assert gradient.loss is not None
        loss = float(gradient.loss)
        norm = clip_by_global_norm(gradient.vector, self.max_grad_norm or torch.inf)
        self._norm.set(float(norm))
        self._counts[0] += 1
        if not torch.isfinite(norm):
            self._not_finite.add()
        elif not self._outliers.accepts(loss):
            self._unusual.add()
        else:
            self._add(gradient.vector.cpu().numpy(), loss, gradient.learning_rate_scale)

    def _add(self, gradient: np.ndarray, loss: float, learning_rate_scale: float) -> None:
        """Send it, or the sum that it completes."""
        period = self.downpour.push_period_gradients
        if period == 1:
            self._send(gradient, loss, learning_rate_scale)
            return
        self._sum += gradient
        self._counts[1] += 1
        if self._counts[1] >= period:
            self._send(self._sum, loss, learning_rate_scale)
            self._sum[:], self._counts[1] = 0.0, 0

    def _send(self, gradient: np.ndarray, loss: float, learning_rate_scale: float) -> None:
        statistics = self._flat.vector[self._flat.num_trained :].cpu().numpy()
        for index, shard in enumerate(self.server.shards):
            slot = self._slots[index]
            assert slot is not None
            slot["gradient"][:] = gradient[shard.trained]
            if slot["statistics"].size:
                slot["statistics"][:] = statistics
            slot["version"][0] = self._source.versions[index]
            slot["loss"][0] = loss
            slot["learning_rate_scale"][0] = learning_rate_scale
            self.server.queues[index].commit(slot)
            self._slots[index] = None
        self._sent.add()

    def state(self) -> Arrays:
        return {
            "outliers": self._outliers.state(),
            "sum": self._sum.copy(),
            "counts": self._counts.copy(),
        }

    def load_state(self, state: Arrays) -> None:
        self._outliers.load_state(state["outliers"])
        self._sum[:], self._counts[:] = state["sum"], state["counts"]
