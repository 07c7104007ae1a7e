# SPDX-License-Identifier: Apache-2.0
"""The learner's side of a parameter server: gradients go out, weights come in, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import clip_by_global_norm
from veldt.ports import ExperienceSink, GradientSink
from veldt.roles.gradients.outliers import OutlierFilter, OutlierSettings
from veldt.roles.gradients.shards import JoinedSource, cut
from veldt.types import Slot


@dataclass(frozen=True)
class RemoteGradientsConfig:
    """The learner never steps its own weights: it sends gradients and pulls what became of them.

    Its port is a list: the gradient queues of all shards, then their boards."""

    settings: OutlierSettings
    max_grad_norm: float = 0.0

    def __call__(
        self, context: NodeContext, flat: FlatParameters, port: list[object]
    ) -> RemoteGradients:
        return RemoteGradients(context, flat, port, self)


class RemoteGradients(GradientSink):
    """Sends each shard its slice. A gradient whose loss is unusual is not sent at all."""

    def __init__(
        self,
        context: NodeContext,
        flat: FlatParameters,
        port: list[object],
        config: RemoteGradientsConfig,
    ) -> None:
        num_shards = len(port) // 2
        self._sinks: list[ExperienceSink] = port[:num_shards]  # type: ignore[assignment]
        slices = cut(flat.size, flat.num_trained, num_shards)
        self._slices = [slice(part.start, min(part.stop, flat.num_trained)) for part in slices]
        self._source = JoinedSource(port[num_shards:], slices)  # type: ignore[arg-type]
        self._flat, self._max_grad_norm = flat, config.max_grad_norm
        self._pulled = np.empty(flat.size, np.float32)
        self._slots: list[Slot | None] = [None] * num_shards
        self._outliers = OutlierFilter(config.settings)
        telemetry = context.telemetry
        self._unusual = telemetry.counter("dropped.outlier")
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._sent = telemetry.counter("gradients_sent")
        self._norm = telemetry.gauge("gradient_norm")

    def begin(self, version: int) -> int | None:
        """The only place where a learner's weights change."""
        for index, sink in enumerate(self._sinks):
            self._slots[index] = self._slots[index] or sink.reserve()
        if not all(self._slots):
            return None
        newer = self._source.pull(self._pulled, newer_than=version)
        if newer is None:
            return version
        self._flat.load(self._pulled)
        return newer

    def apply(
        self,
        gradient: torch.Tensor,
        version: int,
        learning_rate_scale: float = 1.0,
        loss: torch.Tensor | None = None,
        rows: int = 1,
    ) -> int | None:
        assert loss is not None
        value = float(loss)
        norm = clip_by_global_norm(gradient, self._max_grad_norm or torch.inf)
        self._norm.set(float(norm))
        if not torch.isfinite(norm):
            self._not_finite.add()
        elif not self._outliers.accepts(value):
            self._unusual.add()
        else:
            self._send(gradient.cpu().numpy(), value, learning_rate_scale)
        return None

    def _send(self, gradient: np.ndarray, loss: float, learning_rate_scale: float) -> None:
        statistics = self._flat.vector[self._flat.num_trained :].cpu().numpy()
        for index, part in enumerate(self._slices):
            slot = self._slots[index]
            assert slot is not None
            slot["gradient"][:] = gradient[part]
            if slot["statistics"].size:
                slot["statistics"][:] = statistics
            slot["version"][0] = self._source.versions[index]
            slot["loss"][0], slot["learning_rate_scale"][0] = loss, learning_rate_scale
            self._sinks[index].commit(slot)
            self._slots[index] = None
        self._sent.add()

    def state(self) -> dict[str, np.ndarray]:
        return {"outliers": self._outliers.state()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._outliers.load_state(state["outliers"])
