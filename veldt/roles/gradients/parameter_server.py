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
from veldt.networks import NetworkFactory
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.options.checked import Count, CountOrNone, Nodes
from veldt.ports import ExperienceSource, ParameterSink, ParameterSource
from veldt.role import Arrays, Role
from veldt.roles.gradients.outliers import OutlierFilter, OutlierOptions
from veldt.roles.gradients.shards import Server, Shard, shards
from veldt.topology import Topology
from veldt.types import Parameters


@dataclass(frozen=True)
class ServerOptions(OutlierOptions):
    """What a parameter server accepts and how it is cut."""

    num_shards: Nodes = 2
    """Nodes that share the parameter vector between them."""
    max_gradient_age_updates: CountOrNone = 50
    """The server refuses gradients of weights that are more updates old than this."""
    kept_versions: Count = 4
    """Good versions the server keeps to return to."""


@dataclass(eq=False)
class ParameterServer(Role):
    """A shard: applies one gradient per `step` and publishes its slice.

    Every accepted gradient is one version, and so is a roll-back: versions only grow."""

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
        # A norm is the whole gradient's, of which this is a slice: learners clip before they send.
        optimizer = replace(self.optimizer, max_grad_norm=0.0)
        self._optimizer = make_optimizer(optimizer, trained)
        self._outliers = OutlierFilter(self.options)
        self._good: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=self.options.kept_versions)
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
        batch = self.gradients.take_batch()
        if batch is None:
            return False
        with self._applying:
            changed = self._take(batch.arrays)
        self.gradients.release(batch)
        if changed:
            self._version += 1
            with self._publishing:
                self.weights.publish(Parameters(self._vector, self._version))
        return True

    def _take(self, sent: Arrays) -> bool:
        """Apply a gradient or drop it; whether the vector changed."""
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

    def state(self) -> Arrays:
        return {
            "vector": self._vector,
            "version": np.array(self._version),
            "optimizer": self._optimizer.state_vector.numpy(),
            "outliers": self._outliers.state(),
        }

    def load_state(self, state: Arrays) -> None:
        # One that died finds newer weights on its board than in the last checkpoint; others already
        # use them, and versions never go back.
        if int(state["version"]) >= self._version:
            self._vector[:] = state["vector"]
            self._version = int(state["version"])
        self._optimizer.state_vector.numpy()[:] = state["optimizer"]
        self._outliers.load_state(state["outliers"])
        self._good.clear()
        self._keep()


def add_parameter_server(
    topology: Topology,
    network: NetworkFactory,
    optimizer: OptimizerOptions,
    options: ServerOptions,
    num_learners: int,
) -> Server:
    """The shards, each with a queue for its slice of the gradients and a board for its weights."""
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
