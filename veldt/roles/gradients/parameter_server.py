# SPDX-License-Identifier: Apache-2.0
"""A shard of the parameter server: owns a slice of the weights and takes gradients for it.

Learners of any number push without a barrier. What is too old, too unusual or not finite is dropped
and counted; a vector that was damaged all the same goes back to the last good version.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network
from veldt.optimizers import OptimizerConfig, make_optimizer
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource
from veldt.roles.gradients.outliers import OutlierFilter, OutlierSettings
from veldt.roles.gradients.shards import cut
from veldt.topology import Board, Queue
from veldt.types import Field, Layout, Parameters

Server = list[tuple[Queue, Board]]
"""The channels of all shards: gradients to each, and weights from it."""


@dataclass(frozen=True)
class Shard:
    """A slice of the flat vector: weights, and in the last one also the running statistics."""

    part: slice
    num_trained: int

    @property
    def layout(self) -> Layout:
        """What a learner sends: its slice of the gradient and where it comes from.

        Statistics (of an observation normaliser) are an estimate, not a step: the newest replaces
        the last."""
        num_statistics = self.part.stop - self.part.start - self.num_trained
        return Layout.of(
            gradient=Field((self.num_trained,), "float32"),
            statistics=Field((num_statistics,), "float32"),
            version=Field((1,), "int64"),
            loss=Field((1,), "float32"),
            learning_rate_scale=Field((1,), "float32"),
        )


def shards(network: Network, num_shards: int) -> list[Shard]:
    """The slices of a network's flat vector, one per node of the server."""
    flat = FlatParameters(network)
    return [
        Shard(part, min(part.stop, flat.num_trained) - part.start)
        for part in cut(flat.size, flat.num_trained, num_shards)
    ]


@dataclass(frozen=True)
class ShardSettings(OutlierSettings):
    """What a shard accepts."""

    max_gradient_age_updates: int = 50
    """The server refuses gradients of weights that are more updates old than this."""
    kept_versions: int = 4
    """Good versions the server keeps to return to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_gradient_age_updates < 0 or self.kept_versions < 1:
            raise ValueError("max_gradient_age_updates must be 0 or more, kept_versions 1 or more")


class ParameterServer:
    """Applies one gradient per `step` and publishes its slice.

    Every accepted gradient is one version, and so is a roll-back: versions only grow."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        gradients: ExperienceSource,
        weights: ParameterSink,
        initial: ParameterSource,
        shard: Shard,
        optimizer: OptimizerConfig,
        settings: ShardSettings,
    ) -> None:
        self._gradients, self._weights, self._settings = gradients, weights, settings
        self._vector = np.empty(shard.part.stop - shard.part.start, np.float32)
        version = initial.pull(self._vector, newer_than=-1)
        if version is None:
            raise RuntimeError("the board holds no initial weights")
        self._version = version
        self._statistics = self._vector[shard.num_trained :]
        trained = torch.from_numpy(self._vector)[: shard.num_trained]
        # A norm is the whole gradient's, of which this is a slice: learners clip before they send.
        self._optimizer = make_optimizer(replace(optimizer, max_grad_norm=0.0), trained)
        self._outliers = OutlierFilter(settings)
        self._good: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=settings.kept_versions)
        self._keep()
        self._count(context)

    def _count(self, context: NodeContext) -> None:
        telemetry = context.telemetry
        self._applying, self._publishing = telemetry.stage("apply"), telemetry.stage("publish")
        # Every shard takes every gradient: a run's updates are those of one of them.
        self._updates = telemetry.counter("shard_updates" if context.index else "updates")
        self._stale = telemetry.counter("dropped.stale")
        self._unusual = telemetry.counter("dropped.outlier")
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._rollbacks = telemetry.counter("rollbacks")
        self._age = telemetry.gauge("gradient_age_updates")

    def step(self) -> bool:
        batch = self._gradients.take_batch()
        if batch is None:
            return False
        with self._applying:
            changed = self._take(batch.arrays)
        self._gradients.release(batch)
        if changed:
            self._version += 1
            with self._publishing:
                self._weights.publish(Parameters(self._vector, self._version))
        return True

    def _take(self, sent: dict[str, np.ndarray]) -> bool:
        """Apply a gradient or drop it; whether the vector changed."""
        age = self._version - int(sent["version"][0])
        self._age.set(age)
        if age > self._settings.max_gradient_age_updates:
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
        if not np.isfinite(self._vector).all():
            self.roll_back()
            return True
        self._updates.add()
        self._keep()
        return True

    def _keep(self) -> None:
        memory = self._good.popleft() if len(self._good) == self._good.maxlen else None
        if memory is None:
            moments = self._optimizer.state_vector.numpy()
            memory = (np.empty_like(self._vector), np.empty_like(moments))
        np.copyto(memory[0], self._vector)
        np.copyto(memory[1], self._optimizer.state_vector.numpy())
        self._good.append(memory)

    def roll_back(self, versions: int = 0) -> None:
        """Return to the last good version, or to one `versions` before it that is still kept."""
        for _ in range(min(versions, len(self._good) - 1)):
            self._good.pop()
        vector, moments = self._good[-1]
        self._vector[:] = vector
        self._optimizer.state_vector.numpy()[:] = moments
        self._rollbacks.add()

    def state(self) -> dict[str, np.ndarray]:
        return {
            "vector": self._vector,
            "version": np.array(self._version),
            "optimizer": self._optimizer.state_vector.numpy(),
            "outliers": self._outliers.state(),
        }

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        # One that died finds newer weights on its board than in the last checkpoint; others already
        # use them, and versions never go back.
        if int(state["version"]) >= self._version:
            self._vector[:] = state["vector"]
            self._version = int(state["version"])
        self._optimizer.state_vector.numpy()[:] = state["optimizer"]
        self._outliers.load_state(state["outliers"])
        self._good.clear()
        self._keep()
