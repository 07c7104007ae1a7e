# SPDX-License-Identifier: Apache-2.0
"""Gradients applied without locks to memory that several learners share (Hogwild, A3C), the ring
that keeps one copy per cluster of workers in step (Hogwild++), and the one model that predictors
and trainers of a process use together (GA3C)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.networks import FlatParameters, Network, NetworkFactory
from veldt.optimizers import OptimizerOptions, make_optimizer, state_size
from veldt.options.checked import Count, Nodes, Options
from veldt.ports import Gradient, GradientSink
from veldt.role import Arrays, Part
from veldt.topology import UPDATES_SUFFIX, Topology

_COUNT_STRIDE = 8  # int64 per cache line
_MIRROR_SECONDS = 0.2  # how old what evaluation and checkpoints see of a model on a GPU may be


@dataclass(frozen=True)
class HogwildOptions(Options):
    """What workers share."""

    shared_statistics: bool = True
    """All workers use and change one mean square; sgd's momentum is always the worker's own."""
    clusters: Nodes = 1
    """Copies of the weights; more than one is Hogwild++: deltas go around a ring of clusters."""
    ring_period_updates: Count = 8
    """Updates of a cluster's first worker between two turns of the ring."""


@dataclass(eq=False)
class SharedModel(Part):
    """Weights that several nodes change, and how many updates each of them has made, in a cache
    line of its own, so that no count is ever lost. The first line holds the version the run
    started from."""

    weights: np.ndarray
    updates: np.ndarray

    def version(self) -> int:
        return int(self.updates.sum())

    def place(self, network: Network, device: str) -> FlatParameters:
        """Let `network` live in this memory. On a GPU it lives there, once for all nodes of the
        process; this memory is then where evaluation and checkpoints find it."""
        memory = _resident(self.weights, torch.device(device))
        # Placing a network writes its weights there: let these be what others see there now.
        FlatParameters(network, device).load(memory)
        return FlatParameters(network, device, memory=memory)


_ON_DEVICE: dict[int, torch.Tensor] = {}
"""What of this process's shared memory lives on a GPU, by the address of the memory."""


def _resident(shared: np.ndarray, device: torch.device) -> torch.Tensor:
    """Shared memory as a tensor; on a GPU one copy of it for all nodes of this process."""
    if device.type == "cpu":
        return torch.from_numpy(shared)
    address = shared.ctypes.data
    if address not in _ON_DEVICE:
        _ON_DEVICE[address] = torch.from_numpy(shared).to(device)
    return _ON_DEVICE[address]


@dataclass(eq=False)
class Hogwild(GradientSink):
    """Steps the shared vector in place, then copies it into the learner's own.

    Without locks a copy may hold part of an update, and two updates of the same entry at the same
    instant may lose one of them: that is Hogwild. Counts are exact all the same, since every worker
    has one of its own. They are read before the weights are copied, so a version never promises
    more than the copy has: the reported lag is never too small, and too large by at most one update
    of each other worker, the one it was about to count."""

    optimizer: OptimizerOptions
    model: SharedModel
    writer: int
    """This worker's place among those that write the same weights."""
    statistics: np.ndarray | None = None
    """The optimizer's, where workers share them."""
    ring: Ring | None = None

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._flat, self._shared = flat, self._vector(flat)
        self._own_updates = self.model.updates[(self.writer + 1) * _COUNT_STRIDE :][:1]
        trained, statistics = self._shared[: flat.num_trained], None
        if self.statistics is not None:
            statistics = _resident(self.statistics, trained.device)
        self._optimizer = make_optimizer(self.optimizer, trained, statistics)
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
        if self.ring is not None:
            trained = self.model.weights[: self._flat.num_trained]
            self.ring.turn(trained, int(self._own_updates[0]))
        newest = self.model.version()
        own.copy_(shared)
        return newest

    def newest_version(self, version: int) -> int:
        return self.model.version()

    def roll_back(self) -> None:
        self._shared.copy_(self._flat.vector)

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
    """A trainer of the one model: its gradients go where its weights are, which also change between
    two of its updates."""

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
        """Bring what lives on the GPU to the memory where evaluation and checkpoints look."""
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
    """Lay out the memory of `num_workers`; each one's gradient sink. Workers are dealt to the
    clusters in turn; the first cluster's weights are called "weights"."""
    clusters = options.clusters
    if clusters > num_workers:
        raise ConfigurationError(
            f"{clusters} clusters need as many workers; raise --num-actors ({num_workers})"
        )
    models, statistics = [], []
    moments = np.zeros(state_size(optimizer, network.num_trained()), np.float32)
    shares = options.shared_statistics and optimizer.optimizer != "sgd"
    for cluster in range(clusters):
        suffix = f"-{cluster}" if cluster else ""
        weights = topology.share("weights" + suffix, network.initial_vector())
        counts = np.zeros((-(-num_workers // clusters) + 1, _COUNT_STRIDE), np.int64)
        updates = topology.share("weights" + suffix + UPDATES_SUFFIX, counts)
        models.append(SharedModel(weights.end, updates.end))
        statistics.append(topology.share("statistics" + suffix, moments).end if shares else None)
    rings = _share_ring(topology, network, options) if clusters > 1 else [None]
    return [
        kind(
            optimizer,
            models[worker % clusters],
            worker // clusters,
            statistics[worker % clusters],
            rings[worker] if worker < len(rings) else None,
        )
        for worker in range(num_workers)
    ]


def _share_ring(
    topology: Topology, network: NetworkFactory, options: HogwildOptions
) -> list[Ring | None]:
    trained = network.initial_vector()[: network.num_trained()]
    nothing = np.zeros_like(trained)
    token = topology.share("ring.token", nothing).end
    holder = topology.share("ring.holder", np.zeros(1, np.int64)).end
    rings: list[Ring | None] = []
    for cluster in range(options.clusters):
        contribution = topology.share(f"ring.contribution-{cluster}", nothing).end
        seen = topology.share(f"ring.seen-{cluster}", np.array(trained)).end
        rings.append(Ring(options, cluster, token, holder, contribution, seen))
    return rings


@dataclass(eq=False)
class Ring(Part):
    """Brings each cluster's changes to all others, once around the ring (after Hogwild++, Zhang et
    al. 2016). One worker of each cluster turns it.

    The token is the sum of the last contribution of every cluster. Whoever holds it adds the
    others' share to its weights and puts its own changes since the last time in the place of its
    old ones. So every change reaches every copy exactly once. All of it is shared memory: a
    restarted worker goes on where it died, at worst with one contribution lost or doubled."""

    options: HogwildOptions
    cluster: int
    token: np.ndarray
    holder: np.ndarray
    contribution: np.ndarray
    seen: np.ndarray
    _turned_at_updates: int = 0

    def turn(self, weights: np.ndarray, updates: int) -> None:
        """Pass the token on, if it is here and `updates` of this worker are due."""
        due = updates - self._turned_at_updates >= self.options.ring_period_updates
        if not due or int(self.holder[0]) != self.cluster:
            return
        self._turned_at_updates = updates
        now = weights.copy()  # workers of this cluster go on changing the weights meanwhile
        incoming = self.token - self.contribution
        weights += incoming
        np.subtract(now, self.seen, out=self.contribution)
        np.add(incoming, self.contribution, out=self.token)
        np.add(now, incoming, out=self.seen)
        self.holder[0] = (self.cluster + 1) % self.options.clusters
