# SPDX-License-Identifier: Apache-2.0
"""Gradients applied without locks to memory that several learners share (Hogwild, A3C), and the one
model that predictors and trainers of a process use together (GA3C)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated
from weakref import WeakValueDictionary

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network, NetworkFactory
from veldt.optimizers import OptimizerOptions, make_optimizer, state_size
from veldt.options.checked import Options
from veldt.options.groups import OPTIMIZER_OPTIONS
from veldt.ports import Gradient, GradientSink
from veldt.role import Arrays, Part
from veldt.topology import UPDATES_SUFFIX, Topology

_COUNT_STRIDE = 8  # int64 per cache line
_MIRROR_SECONDS = 0.2  # how old what evaluation and checkpoints see of a model on a GPU may be


@dataclass(frozen=True)
class HogwildOptions(Options):
    """Whether workers share the optimizer's statistics."""

    shared_statistics: Annotated[bool, OPTIMIZER_OPTIONS] = True
    """All workers use and change one mean square; sgd's momentum is always the worker's own."""


@dataclass(eq=False)
class WeightsHistory(Part):
    """The last versions of shared weights, for actors that act with older ones.

    They are written without locks, like the weights. Reads `lag` versions behind the newest."""

    vectors: np.ndarray
    """One after the other; version v is in the place v modulo their number."""
    versions: np.ndarray
    lag: int

    def keep(self, weights: np.ndarray, version: int) -> None:
        place = version % self.versions.size
        self.vectors.reshape(self.versions.size, -1)[place] = weights
        self.versions[place] = version

    def pull(self, into: np.ndarray, newer_than: int, at_most: int | None = None) -> int | None:
        newest = self.version() if at_most is None else at_most
        place = max(0, newest - self.lag) % self.versions.size
        version = int(self.versions[place])
        if version <= newer_than:
            return None
        into[:] = self.vectors.reshape(self.versions.size, -1)[place]
        return version

    def version(self) -> int:
        return int(self.versions.max())


def weights_history(topology: Topology, updates: int) -> WeightsHistory | None:
    """A history of the shared weights to read `updates` versions behind; None without these."""
    for shared in topology.shared:
        if shared.spec.name == "weights":
            # A worker's copy is older than the newest weights, at times by several rounds of all.
            versions = np.zeros(updates + 8 * len(topology.nodes), np.int64)
            vectors = topology.share("history", np.tile(shared.initial, versions.size))
            return WeightsHistory(
                vectors.end, topology.share("history.versions", versions).end, updates
            )
    return None


@dataclass(eq=False)
class SharedModel(Part):
    """Weights that several nodes change, and how many updates each of them has made, in a cache
    line of its own, so that no count is ever lost. The first line holds the version the run
    started from."""

    weights: np.ndarray
    updates: np.ndarray
    history: WeightsHistory | None = None

    def version(self) -> int:
        return int(self.updates.sum())

    def place(self, network: Network, device: str) -> FlatParameters:
        """Move the weights of `network` into this memory. On a GPU there is one copy for all nodes
        of the process; evaluation and checkpoints then read this memory."""
        self._memory = memory = _resident(self.weights, torch.device(device))
        # Placing a network writes its weights into the memory, so they must be the current ones.
        FlatParameters(network, device).load(memory)
        return FlatParameters(network, device, memory=memory)


_ON_DEVICE: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
"""GPU copies of this process's shared memory, by its address, while any node uses them."""


def _resident(shared: np.ndarray, device: torch.device) -> torch.Tensor:
    """Shared memory as a tensor; on a GPU one copy of it for all nodes of this process."""
    if device.type == "cpu":
        return torch.from_numpy(shared)
    address = shared.ctypes.data
    copy = _ON_DEVICE.get(address)
    if copy is None:
        copy = _ON_DEVICE[address] = torch.from_numpy(shared).to(device)
    return copy


@dataclass(eq=False)
class Hogwild(GradientSink):
    """Steps the shared vector in place, then copies it into the learner's own.

    Without locks a copy may hold part of an update, and two simultaneous updates of one entry may
    lose one of them. Counts are exact, because every worker has its own. They are read before the
    weights are copied, so the reported lag is never too small, and too large by at most one update
    of each other worker."""

    optimizer: OptimizerOptions
    model: SharedModel
    writer: int
    """This worker's number among those that write the same weights."""
    statistics: np.ndarray | None = None
    """The optimizer's, where workers share them."""

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._flat, self._shared = flat, self._vector(flat)
        self._own_updates = self.model.updates[(self.writer + 1) * _COUNT_STRIDE :][:1]
        trained, self._resident = self._shared[: flat.num_trained], None
        if self.statistics is not None:
            self._resident = _resident(self.statistics, trained.device)
        self._optimizer = make_optimizer(self.optimizer, trained, self._resident)
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._norm = context.telemetry.gauge("gradient_norm")

    def _vector(self, flat: FlatParameters) -> torch.Tensor:
        """The weights that gradients are applied to."""
        return torch.from_numpy(self.model.weights)

    def apply(self, gradient: Gradient) -> int:
        if not self._optimizer.step(gradient.vector, gradient.learning_rate_scale):
            self._not_finite.add()
        self._norm.set(self._optimizer.last_norm)
        own, shared = self._flat.vector, self._shared
        # Running statistics of observations and returns: the last writer wins.
        shared[self._flat.num_trained :].copy_(own[self._flat.num_trained :])
        self._own_updates += 1
        newest = self.model.version()
        own.copy_(shared)
        if self.model.history is not None:
            self.model.history.keep(own.cpu().numpy(), newest)
        return newest

    def newest_version(self, version: int) -> int:
        return self.model.version()

    def state(self) -> Arrays:
        """The worker's own statistics; shared ones are saved with all other shared memory."""
        if self.statistics is not None:
            return {}
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: Arrays) -> None:
        if self.statistics is None:
            self._optimizer.load(torch.from_numpy(state["optimizer"]))


@dataclass(eq=False)
class OneModel(Hogwild):
    """A trainer of the one model, whose weights also change between two of its updates."""

    def parameters(self, network: Network, device: str) -> FlatParameters:
        return self.model.place(network, device)

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        super().open(context, flat)
        self._on_device = flat.vector.device.type != "cpu"
        self._next_mirror = 0.0

    def _vector(self, flat: FlatParameters) -> torch.Tensor:
        return flat.vector

    def begin(self, version: int) -> int:
        return self.model.version()

    def apply(self, gradient: Gradient) -> int:
        newest = super().apply(gradient)
        if self._on_device and time.monotonic() >= self._next_mirror:
            self._mirror()
            self._next_mirror = time.monotonic() + _MIRROR_SECONDS
        return newest

    def _mirror(self) -> None:
        """Copy weights and statistics from the GPU for evaluation and checkpoints."""
        torch.from_numpy(self.model.weights).copy_(self._shared)
        if self.statistics is not None:
            torch.from_numpy(self.statistics).copy_(self._optimizer.state_vector)


def hogwild_workers(
    topology: Topology,
    network: NetworkFactory,
    optimizer: OptimizerOptions,
    options: HogwildOptions,
    num_workers: int,
    kind: type[Hogwild] = Hogwild,
) -> list[Hogwild]:
    """Shared weights and the gradient sink of each worker.

    Args:
        topology: Gets the shared memory.
        network: Of all workers.
        optimizer: Of each worker; its statistics are shared if `options` say so.
        options: What workers share.
        num_workers: Each has a sink, in their order.
        kind: Class of the sinks.
    """
    weights = topology.share("weights", network.initial_vector())
    counts = np.zeros((num_workers + 1, _COUNT_STRIDE), np.int64)
    model = SharedModel(weights.end, topology.share("weights" + UPDATES_SUFFIX, counts).end)
    statistics = None
    if options.shared_statistics and optimizer.optimizer != "sgd":
        moments = np.zeros(state_size(optimizer, network.num_trained()), np.float32)
        statistics = topology.share("statistics", moments).end
    return [kind(optimizer, model, worker, statistics) for worker in range(num_workers)]
