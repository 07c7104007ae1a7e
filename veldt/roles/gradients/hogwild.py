# SPDX-License-Identifier: Apache-2.0
"""Gradients applied without locks to memory that all workers share (Hogwild, A3C), and the ring
that keeps one copy per cluster of workers in step (Hogwild++)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerConfig, make_optimizer, state_size
from veldt.ports import GradientSink
from veldt.topology import UPDATES_SUFFIX, End, Shared, Topology
from veldt.types import Parameters

_COUNT_STRIDE = 8  # int64 per cache line


@dataclass(frozen=True)
class HogwildConfig:
    """One worker's way to the shared weights. The port is a list of arrays: weights, updates, then
    the optimizer's statistics if they are shared, then what the ring needs if there is one."""

    optimizer: OptimizerConfig
    writer: int
    """This worker's place among those that write the same weights."""
    shared_statistics: bool = True
    ring: RingConfig | None = None

    def __call__(
        self, context: NodeContext, flat: FlatParameters, port: Sequence[np.ndarray]
    ) -> Hogwild:
        return Hogwild(context, flat, port, self)


class Hogwild(GradientSink):
    """Steps the shared vector in place, then copies it into the learner's own.

    Without locks a copy may hold part of an update, and two updates of the same entry at the same
    instant may lose one of them: that is Hogwild. Counts are exact all the same, since every worker
    has one of its own. They are read before the weights are copied, so a version never promises
    more than the copy has: the reported lag is never too small, and too large by at most one update
    of each other worker, the one it was about to count."""

    def __init__(
        self,
        context: NodeContext,
        flat: FlatParameters,
        port: Sequence[np.ndarray],
        config: HogwildConfig,
    ) -> None:
        weights, self._updates, *others = port
        self._own_updates = self._updates[(config.writer + 1) * _COUNT_STRIDE :][:1]
        self._flat, self._shared = flat, torch.from_numpy(weights)
        self._shares = config.shared_statistics
        statistics = torch.from_numpy(others.pop(0)) if self._shares else None
        trained = self._shared[: flat.num_trained]
        self._optimizer = make_optimizer(config.optimizer, trained, statistics)
        self._ring = Ring(config.ring, weights[: flat.num_trained], others) if config.ring else None
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._norm = context.telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        return version

    def apply(
        self,
        gradient: torch.Tensor,
        version: int,
        learning_rate_scale: float = 1.0,
        loss: torch.Tensor | None = None,
        rows: int = 1,
    ) -> int | None:
        if not self._optimizer.step(gradient, learning_rate_scale):
            self._not_finite.add()
        self._norm.set(self._optimizer.last_norm)
        own, shared = self._flat.vector, self._shared
        # Running statistics of observations and returns: the last writer wins.
        shared[self._flat.num_trained :].copy_(own[self._flat.num_trained :])
        self._own_updates += 1
        if self._ring is not None:
            self._ring.turn(int(self._own_updates[0]))
        newest = self.newest_version(version)
        own.copy_(shared)
        return newest

    def newest_version(self, version: int) -> int:
        return int(self._updates.sum())

    def roll_back(self) -> None:
        self._shared.copy_(self._flat.vector)

    def state(self) -> dict[str, np.ndarray]:
        """The worker's own statistics; shared ones are saved with all other shared memory."""
        return {} if self._shares else {"optimizer": self._optimizer.state_vector.numpy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        if not self._shares:
            self._optimizer.state_vector.copy_(torch.from_numpy(state["optimizer"]))


def share_hogwild(
    topology: Topology,
    initial: Parameters,
    num_trained: int,
    optimizer: OptimizerConfig,
    num_workers: int,
    shared_statistics: bool = True,
    clusters: int = 1,
    ring_period_updates: int = 1,
) -> list[tuple[HogwildConfig, list[End]]]:
    """Lay out the memory of `num_workers`; each one's gradient sink and its port. Workers are dealt
    to the clusters in turn; the first cluster's weights are called "weights"."""
    if not 1 <= clusters <= num_workers or ring_period_updates < 1:
        raise ValueError(
            f"{clusters} clusters need as many workers (--num-actors is {num_workers}) and a"
            " ring_period_updates of 1 or more"
        )
    writers = -(-num_workers // clusters)
    ports: list[list[End]] = []
    for cluster in range(clusters):
        suffix = f"-{cluster}" if cluster else ""
        shared = _share_weights(topology, "weights" + suffix, initial, writers)
        if shared_statistics:
            moments = np.zeros(state_size(optimizer, num_trained), np.float32)
            shared.append(topology.share("statistics" + suffix, moments))
        ports.append([memory.end for memory in shared])
    rings = _share_ring(topology, initial.vector[:num_trained], clusters) if clusters > 1 else []
    sinks = []
    for worker in range(num_workers):
        cluster, writer = worker % clusters, worker // clusters
        ring = None
        if rings and writer == 0:
            ring = RingConfig(cluster, clusters, ring_period_updates)
        config = HogwildConfig(optimizer, writer, shared_statistics, ring)
        sinks.append((config, ports[cluster] + (rings[cluster] if ring else [])))
    return sinks


def _share_weights(
    topology: Topology, name: str, initial: Parameters, num_writers: int
) -> list[Shared]:
    """Weights and how many updates each writer has made, in a cache line of its own, so that no
    count is ever lost. The first line holds the version the run started from."""
    counts = np.zeros((num_writers + 1, _COUNT_STRIDE), np.int64)
    counts[0, 0] = initial.version
    weights = topology.share(name, np.array(initial.vector, dtype=np.float32))
    return [weights, topology.share(name + UPDATES_SUFFIX, counts)]


def _share_ring(topology: Topology, trained: np.ndarray, clusters: int) -> list[list[End]]:
    nothing = np.zeros_like(trained)
    token = topology.share("ring.token", nothing)
    holder = topology.share("ring.holder", np.zeros(1, np.int64))
    ports = []
    for cluster in range(clusters):
        contribution = topology.share(f"ring.contribution-{cluster}", nothing)
        seen = topology.share(f"ring.seen-{cluster}", np.array(trained))
        ports.append([memory.end for memory in (token, holder, contribution, seen)])
    return ports


@dataclass(frozen=True)
class RingConfig:
    """A cluster's place in the ring and how often it passes on what it has learned."""

    cluster: int
    num_clusters: int
    period_updates: int


class Ring:
    """Brings each cluster's changes to all others, once around the ring (after Hogwild++, Zhang et
    al. 2016). One worker of each cluster turns it.

    The token is the sum of the last contribution of every cluster. Whoever holds it adds the
    others' share to its weights and puts its own changes since the last time in the place of its
    old ones. So every change reaches every copy exactly once. All of it is shared memory: a
    restarted worker goes on where it died, at worst with one contribution lost or doubled."""

    def __init__(
        self, config: RingConfig, weights: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> None:
        self._config, self._weights = config, weights
        self._token, self._holder, self._contribution, self._seen = arrays
        self._turned_at_updates = 0

    def turn(self, updates: int) -> None:
        """Pass the token on, if it is here and `updates` of this worker are due."""
        config = self._config
        due = updates - self._turned_at_updates >= config.period_updates
        if not due or int(self._holder[0]) != config.cluster:
            return
        self._turned_at_updates = updates
        now = self._weights.copy()  # workers of this cluster go on changing the weights meanwhile
        incoming = self._token - self._contribution
        self._weights += incoming
        np.subtract(now, self._seen, out=self._contribution)
        np.add(incoming, self._contribution, out=self._token)
        np.add(now, incoming, out=self._seen)
        self._holder[0] = (config.cluster + 1) % config.num_clusters
