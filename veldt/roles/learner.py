# SPDX-License-Identifier: Apache-2.0
"""The learner: takes a batch, computes a flat gradient, gives it to a gradient sink, publishes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.devices import Completion, Compute, Download, Upload
from veldt.losses import Loss, Objective, Tensors
from veldt.networks import FlatParameters, NetworkFactory
from veldt.optimizers import Schedule
from veldt.ports import (
    ExperiencePart,
    ExperienceSource,
    Gradient,
    GradientSink,
    ParameterSink,
    ParameterSource,
)
from veldt.role import Arrays, Role, entries_below
from veldt.roles.cuda_graphs import RecordedGradient
from veldt.roles.ga3c_tuner import Gate
from veldt.types import DISCOUNTED_RETURN, Batch, Parameters

MOST_DROPS_IN_A_ROW = 20
_REPORT_SECONDS = 0.5  # reading a loss waits for the device, so it is not done every update


@dataclass(eq=False)
class Learner(Role):
    """One update per `step`: loss, gradient, optimizer, publish.

    It begins with the weights of `initial`, or in the memory that `gradients` provides. Without
    `weights` it does not publish, because a server, another learner or shared memory does. The
    learning rate decays linearly to 0 by the schedule `decay`."""

    network: NetworkFactory
    source: ExperienceSource
    objective: Objective
    gradients: GradientSink
    initial: ParameterSource | None = None
    weights: ParameterSink | None = None
    decay: Schedule | None = None
    compute: Compute = Compute()
    gate: Gate | None = None

    def open(self, context: NodeContext) -> None:
        torch.set_num_threads(self.compute.threads)
        device = torch.device(self.compute.device)
        if device.type == "cuda":
            # Matrix products may round float32 factors to TF32, with 10 bits of mantissa.
            torch.set_float32_matmul_precision("high")
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
        self.objective.seed = context.derived_seed("loss")
        self.objective.open(self._network)
        self.gradients.open(context, self._flat)
        self._recorded: RecordedGradient | None = None
        if device.type == "cuda":
            step = self.gradients.device_step()
            self._recorded = RecordedGradient(self.objective, self._flat, device, step)
        self._guard = FiniteGuard(context)
        self._telemetry = telemetry = context.telemetry
        self._learning, self._publishing = telemetry.stage("learn"), telemetry.stage("publish")
        self._handing_over = telemetry.stage("hand_over")
        self._updates = telemetry.counter("updates")
        self._trained = telemetry.counter("trained_env_steps")
        self._steps = telemetry.counter("gradient_steps")
        self._next_report = 0.0

    def device(self) -> str:
        return self.compute.device

    def scheduled(self) -> list[str]:
        """What follows the schedule of the run."""
        return [] if self.decay is None else ["learning rate"]

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
        if version is not None:
            self._updated(version)
            if self.weights is None:
                self._updates.add()  # of weights that need no publishing
        self.source.release(batch)  # until now a successor could take it again
        return True

    def _begin(self) -> bool:
        """Take weights that other nodes have changed; False while no gradient could be sent."""
        version = self.gradients.begin(self._version)
        if version is None:
            return False
        if version != self._version:
            self._updated(version)
        return True

    def _updated(self, version: int) -> None:
        """Publish the learner's weights after they have changed to `version`."""
        self._version = version
        self.objective.after_update(version)
        if self.weights is not None:
            self._updates.add()
            with self._publishing:
                vector = self._download(self._flat.vector.detach())
                self.weights.publish(Parameters(vector, version))

    def _learn(self, batch: Batch) -> int | None:
        """Learn from a batch, in one or several passes; the version of the weights afterwards, or
        None if they have not changed."""
        tensors = self._upload(batch)
        rows, decay = self._record_lag(batch), self._learning_rate_scale()
        passes = iter(self.objective.passes(tensors))
        part: Tensors | None = next(passes)
        version: int | None = self._version + 1
        stepped_on_device = False
        while part is not None:
            own_scale = self.objective.learning_rate_scale()
            loss, is_applied = self._differentiate(part, decay * own_scale)
            loss = self.objective.after_loss(loss)
            part = next(passes, None)
            if part is None:
                # After the last loss, because all passes, and all learners of a group, must use the
                # same statistics.
                self._update_statistics(tensors)
            self._steps.add()
            if is_applied:
                stepped_on_device = True
                continue
            scale = decay * float(loss.learning_rate_scale * own_scale)
            gradient = Gradient(self._flat.gradient, self._version, scale, loss.total, rows)
            version = self.gradients.apply(gradient)
            self._guard.check()
        if stepped_on_device:
            self._completion.wait()  # also for the batch, which is released after this
            self.gradients.count_device_steps()
            self._guard.check()
        self._report(loss.metrics)
        if isinstance(self.source, ExperiencePart) and loss.priorities is not None:
            self.source.prioritize(batch, loss.priorities.cpu().numpy())
        return version

    def _differentiate(self, part: Tensors, learning_rate_scale: float) -> tuple[Loss, bool]:
        """The loss, whose gradient is then in `_flat`, and whether its step was taken too."""
        if self._recorded is not None:
            return self._recorded(part, learning_rate_scale)
        self._flat.zero_gradient()
        loss = self.objective(part)
        loss.total.backward()
        return loss.detached(), False

    def _record_lag(self, batch: Batch) -> int:
        """Record lag and rows just before the gradient is applied; the number of rows."""
        versions, ignored = batch["parameter_version"], batch.arrays.get("ignored")
        if ignored is None:  # transitions of a replay, with one version each
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
        return 1.0 if self.decay is None else 1.0 - self.decay.passed(self._trained.value)

    def _report(self, metrics: Tensors) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _REPORT_SECONDS
        if self.decay is not None:
            self._telemetry.gauge("learning_rate_scale").set(self._learning_rate_scale())
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
        # The board of a learner that died has newer weights than the last checkpoint. Actors use
        # them already, and versions never decrease.
        version, published = int(state["version"]), self._version
        if version >= published:
            self._flat.load(state["vector"])
            self._version = version
            if self.weights is not None and version > published:
                # Learners of its group that were saved earlier wait for this version.
                self.weights.publish(Parameters(state["vector"], version))
        self.gradients.load_state(entries_below("gradients.", state))
        self.objective.load_state(entries_below("objective.", state))

    def close(self) -> None:
        self._upload.close()


class NotFiniteError(RuntimeError):
    """Too many consecutive gradients were not finite."""


class FiniteGuard:
    """Ends a run with too many consecutive gradients that are not finite.

    Gradient sinks drop each of them whole and count it, so the weights are still those before."""

    def __init__(self, context: NodeContext) -> None:
        self._drops = context.telemetry.counter("dropped.not_finite")
        self._seen = self._drops.value
        self._in_a_row = 0

    def check(self) -> None:
        """Call it after every gradient."""
        dropped = self._drops.value - self._seen
        self._seen += dropped
        self._in_a_row = self._in_a_row + 1 if dropped else 0
        if self._in_a_row >= MOST_DROPS_IN_A_ROW:
            raise NotFiniteError(
                f"{self._in_a_row} gradients in a row were not finite; the weights are those before"
                " them; lower the learning rate"
            )
