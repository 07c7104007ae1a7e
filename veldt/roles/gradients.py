# SPDX-License-Identifier: Apache-2.0
"""Who applies a learner's gradients. This one choice tells DQN from Gorila and A2C from A3C."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerConfig, make_optimizer


@dataclass(frozen=True)
class LocalOptimizerConfig:
    """The learner steps its own weights."""

    optimizer: OptimizerConfig

    def __call__(self, context: NodeContext, flat: FlatParameters, port: object) -> LocalOptimizer:
        return LocalOptimizer(context, flat, self.optimizer)


class LocalOptimizer:
    """Steps the learner's own vector in place; a gradient that is not finite is dropped whole."""

    def __init__(
        self, context: NodeContext, flat: FlatParameters, config: OptimizerConfig
    ) -> None:
        self._optimizer = make_optimizer(config, flat.vector[: flat.num_trained])
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
    ) -> int | None:
        applied = self._optimizer.step(gradient, learning_rate_scale)
        self._norm.set(self._optimizer.last_norm)
        if not applied:
            self._not_finite.add()
            return None
        return version + 1

    def state(self) -> dict[str, np.ndarray]:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._optimizer.state_vector.copy_(torch.from_numpy(state["optimizer"]))
