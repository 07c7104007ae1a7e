# SPDX-License-Identifier: Apache-2.0
"""The learner: takes a batch, computes a flat gradient, hands it to whoever applies it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.devices import Completion, Upload
from veldt.networks import Network
from veldt.objectives import Objective, Tensors
from veldt.ports import (
    ExperienceSink,
    ExperienceSource,
    GradientSink,
    ParameterSink,
    ParameterSource,
)
from veldt.roles.annealing import Gate
from veldt.roles.finite_guard import FiniteGuard
from veldt.roles.gradients.one_model import model_memory
from veldt.roles.gradients.shards import joined
from veldt.types import DISCOUNTED_RETURN, Batch, Parameters

_REPORT_SECONDS = 0.5  # reading a loss waits for the device, so it is not done every update


class Learner:
    """One update per `step`: loss, gradient, optimizer, publish.

    Without `weights` it neither publishes nor counts updates: a server or another learner does.
    `objective_port` is given to `make_objective`; `make_source` wraps the source. `memory` makes
    the network one model that others use and change too (GA3C); there is no copy to load then."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        source: ExperienceSource,
        weights: ParameterSink | None = None,
        initial: ParameterSource | list[ParameterSource] | None = None,
        make_network: Callable[[], Network],
        make_objective: Callable[..., Objective],
        gradients: Callable[..., GradientSink],
        gradient_port: object = None,
        objective_port: object = None,
        make_source: Callable[..., ExperienceSource] | None = None,
        feedback: ExperienceSink | None = None,
        total_env_steps: int | None = None,
        device: str = "cpu",
        torch_threads: int = 1,
        memory: list[np.ndarray] | None = None,
        gate: Callable[..., Gate] | None = None,
        gate_port: object = None,
    ) -> None:
        torch.set_num_threads(torch_threads)
        self._device = torch.device(device)
        self._upload, self._completion = Upload(self._device), Completion(self._device)
        self._source, self._weights, self._feedback = source, weights, feedback
        self._network = make_network().to(self._device).train()
        self._flat, updates = model_memory(self._network, device, memory)
        if updates is not None:
            self._version = int(updates.sum())
        else:
            assert initial is not None
            self._version = self._load(joined(initial, self._flat))
        self._is_trainer = memory is not None
        self._gate = gate(gate_port, index=context.index) if gate else None
        ports = () if objective_port is None else (objective_port,)
        self._objective = make_objective(self._network, *ports)
        if make_source is not None:
            self._source = make_source(context, source)
        self._gradients = sink = gradients(context, self._flat, gradient_port)
        self._guard = FiniteGuard(context, self._flat, self._version, sink, weights)
        self._total_env_steps = total_env_steps
        self._count(context)

    def _count(self, context: NodeContext) -> None:
        self._telemetry = telemetry = context.telemetry
        self._learning, self._publishing = telemetry.stage("learn"), telemetry.stage("publish")
        self._updates = telemetry.counter("updates")
        self._trained = telemetry.counter("trained_env_steps")
        self._late_priorities = telemetry.counter("dropped.late_priorities")
        self._losses: dict[str, torch.Tensor] = {}
        self._next_report = 0.0

    def _load(self, initial: ParameterSource) -> int:
        vector = np.empty(self._flat.size, np.float32)
        version = initial.pull(vector, newer_than=-1)
        if version is None:
            raise RuntimeError("the board holds no initial weights")
        self._flat.load(vector)
        return version

    def step(self) -> bool:
        if self._gate is not None and not self._gate.is_open():
            return False
        if not self._begin():
            return False
        batch = self._source.take_batch()
        if batch is None:
            return False
        with self._learning:
            version = self._learn(batch)
        self._source.release(batch)
        if version is not None:
            self._updated(version)
            if self._is_trainer:
                self._updates.add()
        return True

    def _begin(self) -> bool:
        """Take weights that others have changed; False while a gradient would find no place."""
        version = self._gradients.begin(self._version)
        if version is None:
            return False
        if version != self._version:
            self._updated(version)
        return True

    def _updated(self, version: int) -> None:
        """The learner's own weights have changed to `version`."""
        self._version = version
        self._objective.after_update(version)
        if self._weights is not None:
            self._updates.add()
            with self._publishing:
                vector = self._flat.vector.detach().cpu().numpy()
                self._weights.publish(Parameters(vector, version))

    def _learn(self, batch: Batch) -> int | None:
        tensors = self._upload(batch)
        rows, decay = self._record_lag(batch), self._learning_rate_scale()
        passes = iter(self._objective.passes(tensors))
        minibatch: Tensors | None = next(passes)
        while minibatch is not None:
            loss = self._objective(minibatch)
            self._flat.zero_gradient()
            loss.total.backward()
            self._completion.wait()
            minibatch = next(passes, None)
            if minibatch is None:
                # After the last loss: passes, and learners that step together, must all have used
                # the same statistics.
                self._update_statistics(tensors)
            scale = decay * float(loss.learning_rate_scale)
            total = loss.total.detach()
            version = self._gradients.apply(self._flat.gradient, self._version, scale, total, rows)
        self._report(loss.metrics)
        self._guard.check(batch, self._version, total, self._objective)
        if self._feedback is not None and loss.priorities is not None:
            self._send_priorities(batch, loss.priorities.detach().cpu().numpy())
        return version

    def _record_lag(self, batch: Batch) -> int:
        """Count lag and rows, at the moment before the gradient is applied; the number of rows."""
        versions, ignored = batch["parameter_version"], batch.arrays.get("ignored")
        if ignored is None:  # transitions out of a replay, one version each
            rows = versions.size
        else:
            versions = versions[:-1].ravel()
            rows = ignored[:-1].size - int(np.count_nonzero(ignored[:-1]))
        self._telemetry.lag(self._gradients.newest_version(self._version) - versions)
        self._trained.add(rows)
        return rows

    def _send_priorities(self, batch: Batch, priorities: np.ndarray) -> None:
        assert self._feedback is not None
        if not np.isfinite(priorities).all():
            return
        slot = self._feedback.reserve()
        if slot is None:
            self._late_priorities.add()
            return
        slot["item_id"][:] = batch["item_id"]
        slot["priority"][:] = priorities
        self._feedback.commit(slot)

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
        if self._total_env_steps is None:
            return 1.0
        return max(0.0, 1.0 - self._trained.value / self._total_env_steps)

    def _report(self, metrics: Tensors) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _REPORT_SECONDS
        for name, value in metrics.items():
            self._telemetry.gauge(f"loss.{name}").set(float(value.detach()))

    def state(self) -> dict[str, np.ndarray]:
        return {
            "vector": self._flat.vector.cpu().numpy(),
            "version": np.array(self._version),
            **{f"gradients.{name}": array for name, array in self._gradients.state().items()},
            **{f"objective.{name}": array for name, array in self._objective.state().items()},
        }

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        # A learner that died finds newer weights on its board than in the last checkpoint; actors
        # already use them, and versions never go back.
        if int(state["version"]) >= self._version:
            self._flat.load(state["vector"])
            self._version = int(state["version"])
        self._gradients.load_state(_below("gradients.", state))
        self._objective.load_state(_below("objective.", state))

    def close(self) -> None:
        self._upload.close()


def _below(prefix: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = state.items()
    return {name.removeprefix(prefix): array for name, array in found if name.startswith(prefix)}
