# SPDX-License-Identifier: Apache-2.0
"""The learner: takes a batch, computes a flat gradient, hands it to whoever applies it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network
from veldt.objectives import Objective, Tensors
from veldt.ports import (
    ExperienceSink,
    ExperienceSource,
    GradientSink,
    ParameterSink,
    ParameterSource,
)
from veldt.types import DISCOUNTED_RETURN, Batch, Parameters

_REPORT_SECONDS = 0.5  # reading a loss waits for the device, so it is not done every update


class Learner:
    """One update per `step`: loss, gradient, optimizer, publish."""

    def __init__(
        self,
        context: NodeContext,
        *,
        source: ExperienceSource,
        weights: ParameterSink,
        initial: ParameterSource,
        make_network: Callable[[], Network],
        make_objective: Callable[[Network], Objective],
        gradients: Callable[..., GradientSink],
        gradient_port: object = None,
        feedback: ExperienceSink | None = None,
        total_env_steps: int | None = None,
        device: str = "cpu",
        torch_threads: int = 1,
    ) -> None:
        torch.set_num_threads(torch_threads)
        self._device = torch.device(device)
        self._source, self._weights, self._feedback = source, weights, feedback
        self._network = make_network().to(self._device).train()
        self._flat = FlatParameters(self._network, device)
        self._version = self._load(initial)
        self._objective = make_objective(self._network)
        self._gradients = gradients(context, self._flat, gradient_port)
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
        batch = self._source.take_batch()
        if batch is None:
            return False
        with self._learning:
            applied = self._learn(batch)
        self._source.release(batch)
        if applied:
            with self._publishing:
                self._publish()
        return True

    def _learn(self, batch: Batch) -> bool:
        tensors = self._tensors(batch)
        self._record_lag(batch)
        self._update_statistics(tensors)
        loss = self._objective(tensors)
        self._flat.zero_gradient()
        loss.total.backward()
        scale = self._learning_rate_scale() * loss.learning_rate_scale
        version = self._gradients.apply(self._flat.gradient, self._version, scale)
        if version is None:
            return False
        self._version = version
        self._objective.after_update(self._version)
        self._updates.add()
        self._report(loss.metrics)
        if self._feedback is not None and loss.priorities is not None:
            self._send_priorities(batch, loss.priorities)
        return True

    def _tensors(self, batch: Batch) -> Tensors:
        tensors = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
        if self._device.type == "cpu":
            return tensors
        return {name: t.to(self._device, non_blocking=True) for name, t in tensors.items()}

    def _record_lag(self, batch: Batch) -> None:
        versions, ignored = batch["parameter_version"], batch.arrays.get("ignored")
        if ignored is None:  # transitions out of a replay, one version each
            self._telemetry.lag(self._version - versions)
            self._trained.add(versions.size)
            return
        self._telemetry.lag(self._version - versions[:-1].ravel())
        self._trained.add(ignored[:-1].size - int(np.count_nonzero(ignored[:-1])))

    def _send_priorities(self, batch: Batch, priorities: torch.Tensor) -> None:
        assert self._feedback is not None
        slot = self._feedback.reserve()
        if slot is None:
            self._late_priorities.add()
            return
        slot["item_id"][:] = batch["item_id"]
        slot["priority"][:] = priorities.detach().cpu().numpy()
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

    def _publish(self) -> None:
        vector = self._flat.vector.detach().cpu().numpy()
        self._weights.publish(Parameters(vector, self._version))

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
        }

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._flat.load(state["vector"])
        self._version = int(state["version"])
        prefix = "gradients."
        self._gradients.load_state(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
