# SPDX-License-Identifier: Apache-2.0
"""The learner's side of a parameter server: gradients go out, weights come in, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import clip_by_global_norm
from veldt.options.checked import Count, Options
from veldt.ports import Gradient, GradientSink
from veldt.role import Arrays
from veldt.roles.gradients.outliers import OutlierFilter, OutlierOptions
from veldt.roles.gradients.shards import Server
from veldt.types import Slot


@dataclass(frozen=True)
class DownpourOptions(Options):
    """How often a learner talks to the server (Dean et al., 2012: n_fetch and n_push)."""

    fetch_period_gradients: Count = 1
    """Gradients that a learner computes between two pulls of weights."""
    push_period_gradients: Count = 1
    """Gradients that a learner adds up before it sends their sum."""


@dataclass(eq=False)
class RemoteGradients(GradientSink):
    """Sends each shard its slice and pulls what became of it; the learner never steps its own
    weights. A gradient whose loss is unusual is not sent at all."""

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
        """The only place where a learner's weights change."""
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
        """Whether there is room for a gradient with every shard."""
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
