# SPDX-License-Identifier: Apache-2.0
"""The learner: takes a batch, computes a flat gradient, hands it to whoever applies it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.devices import Completion, Compute, Download, Upload, use_tensor_cores
from veldt.losses import Objective, Tensors
from veldt.networks import FlatParameters, NetworkFactory
from veldt.ports import (
    ExperiencePart,
    ExperienceSource,
    Gradient,
    GradientSink,
    ParameterSink,
    ParameterSource,
)
from veldt.role import Arrays, Role
from veldt.roles.differentiation import differentiation
from veldt.roles.finite_guard import FiniteGuard
from veldt.roles.ga3c_tuner import Gate
from veldt.roles.learner_threads import LearnerThreads
from veldt.topology import End, QueueSpec, Topology
from veldt.types import DISCOUNTED_RETURN, Batch, Parameters

_REPORT_SECONDS = 0.5  # reading a loss waits for the device, so it is not done every update


@dataclass(eq=False)
class Learner(Role):
    """One update per `step`: loss, gradient, optimizer, publish.

    It begins with the weights of `initial`, or where those of `gradients` are. Without `weights` it
    does not publish: a server, another learner or shared memory does. The learning rate falls to 0
    over `decay_env_steps`."""

    network: NetworkFactory
    source: ExperienceSource
    objective: Objective
    gradients: GradientSink
    initial: ParameterSource | None = None
    weights: ParameterSink | None = None
    decay_env_steps: int | None = None
    compute: Compute = Compute()
    gate: Gate | None = None

    def open(self, context: NodeContext) -> None:
        self._threads = LearnerThreads(self.compute.threads, self.compute.gives_way)
        device = torch.device(self.compute.device)
        if device.type == "cuda":
            use_tensor_cores()
        self._upload, self._download = Upload(device), Download(device)
        self._completion = Completion(device)
        network = self.network.make() if self.initial is None else self.network.blank()
        self._network = network.to(device).train()
        placed = self.gradients.parameters(self._network, self.compute.device)
        self._flat = placed or FlatParameters(self._network, self.compute.device)
        self._version = self._load()
        if self.gate is not None:
            self.gate.open(context)
        if isinstance(self.source, ExperiencePart):
            self.source.open(context)
        self.objective.open(self._network)
        self.gradients.open(context, self._flat)
        step = self.gradients.unseen_step() if device.type == "cuda" else None
        self._differentiate = differentiation(self.objective, self._flat, device, step)
        self._guard = FiniteGuard(context, self._flat, self._version, self.gradients, self.weights)
        self._count(context)

    def device(self) -> str:
        return self.compute.device

    @property
    def patience_seconds(self) -> float:
        return self.gradients.patience_seconds()

    def _count(self, context: NodeContext) -> None:
        self._telemetry = telemetry = context.telemetry
        self._learning, self._publishing = telemetry.stage("learn"), telemetry.stage("publish")
        self._handing_over = telemetry.stage("hand_over")
        self._updates = telemetry.counter("updates")
        self._trained = telemetry.counter("trained_env_steps")
        self._steps = telemetry.counter("gradient_steps")
        self._next_report = 0.0

    def _load(self) -> int:
        if self.initial is None:
            return self.gradients.newest_version(0)
        vector = np.empty(self._flat.size, np.float32)
        version = self.initial.pull(vector, newer_than=-1)
        if version is None:
            raise RuntimeError("the board holds no initial weights")
        self._flat.load(vector)
        return version

    def step(self) -> bool:
        if self.gate is not None and not self.gate.is_open():
            return False
        if not self._begin():
            return False
        with self._handing_over:
            batch = self.source.take_batch()
        if batch is None:
            return False
        with self._learning:
            version = self._learn(batch)
        self.source.release(batch)
        if version is not None:
            self._updated(version)
            if self.weights is None:
                self._updates.add()  # of weights that nobody needs to publish
        return True

    def _begin(self) -> bool:
        """Take weights that others have changed; False while a gradient would find no place."""
        version = self.gradients.begin(self._version)
        if version is None:
            return False
        if version != self._version:
            self._updated(version)
        return True

    def _updated(self, version: int) -> None:
        """The learner's own weights have changed to `version`."""
        self._version = version
        self.objective.after_update(version)
        if self.weights is not None:
            self._updates.add()
            with self._publishing:
                vector = self._download(self._flat.vector.detach())
                self.weights.publish(Parameters(vector, version))

    def _learn(self, batch: Batch) -> int | None:
        """One version, whether a batch is learned from once or in several passes."""
        tensors = self._upload(batch)
        rows, decay = self._record_lag(batch), self._learning_rate_scale()
        passes = iter(self.objective.passes(tensors))
        part: Tensors | None = next(passes)
        version: int | None = self._version + 1
        went_unseen = False
        while part is not None:
            own_scale = self.objective.learning_rate_scale()
            differentiated = self._differentiate(part, decay * own_scale)
            loss = self.objective.after_loss(differentiated.loss)
            part = next(passes, None)
            if part is None:
                # After the last loss: passes, and learners that step together, must all have used
                # the same statistics.
                self._update_statistics(tensors)
            self._steps.add()
            self._threads.look()
            if differentiated.is_applied:
                went_unseen = True
                continue
            scale = decay * float(loss.learning_rate_scale * own_scale)
            gradient = Gradient(self._flat.gradient, self._version, scale, loss.total, rows)
            version = self.gradients.apply(gradient)
            self._guard.check(batch, self._version, loss.total, self.objective)
        if went_unseen:
            self._completion.wait()  # also for the batch, which is given back after this
            self.gradients.look()
            self._guard.check(batch, self._version, loss.total, self.objective)
        self._report(loss.metrics)
        if isinstance(self.source, ExperiencePart) and loss.priorities is not None:
            self.source.prioritize(batch, loss.priorities.cpu().numpy())
        return version

    def _record_lag(self, batch: Batch) -> int:
        """Count lag and rows, at the moment before the gradient is applied; the number of rows."""
        versions, ignored = batch["parameter_version"], batch.arrays.get("ignored")
        if ignored is None:  # transitions out of a replay, one version each
            rows = versions.size
        else:
            versions = versions[:-1].ravel()
            rows = ignored[:-1].size - int(np.count_nonzero(ignored[:-1]))
        self._telemetry.lag(self.gradients.newest_version(self._version) - versions)
        self._trained.add(rows / self._network.spec.rows_per_env_step)
        return rows

    def _update_statistics(self, tensors: Tensors) -> None:
        if self._network.normalizer is None and self._network.return_moments is None:
            return
        leaves = [leaf.name for leaf in self._network.spec.observation]
        if "ignored" not in tensors:
            valid = torch.ones_like(tensors["reward"], dtype=torch.bool)
            self._network.update_statistics({name: tensors[name] for name in leaves}, valid)
            return
        valid = ~tensors["ignored"][:-1]
        self._network.update_statistics({name: tensors[name][:-1] for name in leaves}, valid)
        if DISCOUNTED_RETURN in tensors:
            self._network.update_return_statistics(tensors[DISCOUNTED_RETURN][:-1], valid)

    def _learning_rate_scale(self) -> float:
        if self.decay_env_steps is None:
            return 1.0
        return max(0.0, 1.0 - self._trained.value / self.decay_env_steps)

    def _report(self, metrics: Tensors) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _REPORT_SECONDS
        for name, value in metrics.items():
            self._telemetry.gauge(f"loss.{name}").set(float(value))

    def state(self) -> Arrays:
        return {
            "vector": self._flat.vector.cpu().numpy(),
            "version": np.array(self._version),
            **{f"gradients.{name}": array for name, array in self.gradients.state().items()},
            **{f"objective.{name}": array for name, array in self.objective.state().items()},
        }

    def load_state(self, state: Arrays) -> None:
        # A learner that died finds newer weights on its board than in the last checkpoint; actors
        # already use them, and versions never go back.
        version, published = int(state["version"]), self._version
        if version >= published:
            self._flat.load(state["vector"])
            self._version = version
            if self.weights is not None and version > published:
                # Learners of its group may have been saved earlier: they wait for this version.
                self.weights.publish(Parameters(state["vector"], version))
        self.gradients.load_state(_below("gradients.", state))
        self.objective.load_state(_below("objective.", state))

    def close(self) -> None:
        self._upload.close()


def _below(prefix: str, state: Arrays) -> Arrays:
    found = state.items()
    return {name.removeprefix(prefix): array for name, array in found if name.startswith(prefix)}


def rows_per_batch(topology: Topology) -> int:
    """Rows that the first learner takes at a time: transitions, or the steps of trajectories, whose
    last row is only there to bootstrap from."""
    queue, end = _first_source(topology)
    steps, *columns = queue.layout["reward"].shape
    rows = (steps - 1) * columns[0] if columns else steps
    return rows * end.slots_per_batch


def slots_per_batch(topology: Topology) -> int:
    """Trajectories, or chunks of transitions, that the first learner takes at a time."""
    return _first_source(topology)[1].slots_per_batch


def _first_source(topology: Topology) -> tuple[QueueSpec, End]:
    learner = next(node for node in topology.nodes if isinstance(node.role, Learner))
    for _, end in learner.ends():
        if isinstance(end.channel, QueueSpec) and end.side == "source":
            return end.channel, end
    raise ValueError(f"{learner.name} reads no queue")
