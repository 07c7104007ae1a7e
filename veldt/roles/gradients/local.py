# SPDX-License-Identifier: Apache-2.0
"""Who applies a learner's gradients. This one choice tells DQN from Gorila and A2C from A3C."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerConfig, make_optimizer
from veldt.ports import GradientSink


@dataclass(frozen=True)
class LocalOptimizerConfig:
    """The learner steps its own weights."""

    optimizer: OptimizerConfig
    others: dict[str, OptimizerConfig] = field(default_factory=dict)
    """Submodules with an optimizer of their own (an actor beside its critic)."""

    def __call__(self, context: NodeContext, flat: FlatParameters, port: object) -> GradientSink:
        if not self.others:
            return LocalOptimizer(context, flat, self.optimizer)
        return SplitOptimizer(context, flat, self)


class LocalOptimizer(GradientSink):
    """Steps the learner's own vector in place; a gradient that is not finite is dropped whole."""

    def __init__(
        self,
        context: NodeContext,
        flat: FlatParameters,
        config: OptimizerConfig,
        span: slice | None = None,
        prefix: str = "",
    ) -> None:
        span = span or slice(0, flat.num_trained)
        self._optimizer = make_optimizer(config, flat.vector[span])
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._norm = context.telemetry.gauge(f"{prefix}gradient_norm")

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
        applied = self._optimizer.step(gradient, learning_rate_scale)
        self._norm.set(self._optimizer.last_norm)
        if not applied:
            self._not_finite.add()
        return version + 1  # also when nothing changed: actors may wait for the next version

    def state(self) -> dict[str, np.ndarray]:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._optimizer.state_vector.copy_(torch.from_numpy(state["optimizer"]))


class SplitOptimizer(GradientSink):
    """Steps parts of the learner's vector with optimizers of their own; what they leave over must
    be in one piece, and is stepped with the main one."""

    def __init__(
        self, context: NodeContext, flat: FlatParameters, config: LocalOptimizerConfig
    ) -> None:
        spans = {name: flat.span(name) for name in config.others}
        taken = np.zeros(flat.num_trained, bool)
        for span in spans.values():
            taken[span] = True
        rest = np.flatnonzero(~taken)
        self._parts: dict[str, tuple[slice, LocalOptimizer]] = {}
        for name, span in spans.items():
            part = LocalOptimizer(context, flat, config.others[name], span, f"{name}.")
            self._parts[name] = (span, part)
        if rest.size:
            span = slice(int(rest[0]), int(rest[-1]) + 1)
            if rest.size != span.stop - span.start:
                raise ValueError("the weights without an optimizer of their own are not together")
            self._parts["main"] = (span, LocalOptimizer(context, flat, config.optimizer, span))

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
        for span, part in self._parts.values():
            # A part without any gradient is left alone, momentum too (TD3's delayed actor).
            if gradient[span].any():
                part.apply(gradient[span], version, learning_rate_scale)
        return version + 1

    def state(self) -> dict[str, np.ndarray]:
        return {
            f"{name}.{key}": array
            for name, (_, part) in self._parts.items()
            for key, array in part.state().items()
        }

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for name, (_, part) in self._parts.items():
            part.load_state({"optimizer": state[f"{name}.optimizer"]})
