# SPDX-License-Identifier: Apache-2.0
"""The learner steps its own weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import Optimizer, OptimizerOptions, make_optimizer
from veldt.ports import DeviceStep, Gradient, GradientSink
from veldt.role import Arrays
from veldt.telemetry.counters import Counter


@dataclass(eq=False)
class LocalOptimizer(GradientSink):
    """Steps the learner's own vector in place; a gradient that is not finite is dropped whole.

    `others` are submodules with an optimizer of their own (an actor beside its critic); the
    remaining weights must be contiguous."""

    optimizer: OptimizerOptions
    others: dict[str, OptimizerOptions] = field(default_factory=dict)

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        telemetry = context.telemetry
        self._not_finite = telemetry.counter("dropped.not_finite")
        self._gradient = flat.gradient
        self._parts: dict[str, tuple[slice, Optimizer, Counter]] = {}
        for name, span in self._spans(flat):
            options, prefix = self.others.get(name, self.optimizer), f"{name}." if name else ""
            optimizer = make_optimizer(options, flat.vector[span])
            self._parts[name] = (span, optimizer, telemetry.gauge(f"{prefix}gradient_norm"))

    def _spans(self, flat: FlatParameters) -> Iterator[tuple[str, slice]]:
        """The weights of each optimizer; the main one, which has the rest, has no name."""
        rest = np.ones(flat.num_trained, bool)
        for name in self.others:
            rest[flat.span(name)] = False
            yield name, flat.span(name)
        [places] = np.nonzero(rest)
        if places.size:
            span = slice(int(places[0]), int(places[-1]) + 1)
            if places.size != span.stop - span.start:
                raise ValueError("the weights without an optimizer of their own are not together")
            yield "", span

    def apply(self, gradient: Gradient) -> int:
        for span, optimizer, norm in self._parts.values():
            own = gradient.vector[span]
            # Without any gradient a part keeps its momentum, too (TD3's delayed actor).
            if self.others and not own.any():
                continue
            if not optimizer.step(own, gradient.learning_rate_scale):
                self._not_finite.add()
            norm.set(optimizer.last_norm)
        return gradient.version + 1  # even if nothing changed, because actors may wait for it

    def device_step(self) -> DeviceStep | None:
        if self.others:  # the host decides which of them have a gradient
            return None
        [(span, optimizer, _)] = self._parts.values()
        device = optimizer.vector.device
        self._device_norm = torch.zeros((), device=device)
        self._device_drops = torch.zeros((), device=device)

        def step(learning_rate_scale: torch.Tensor) -> None:
            norm = optimizer.step_on_device(self._gradient[span], learning_rate_scale)
            self._device_norm.copy_(norm)
            self._device_drops.add_(~torch.isfinite(norm))

        return step

    def count_device_steps(self) -> None:
        [(_, _, gauge)] = self._parts.values()
        norm, drops = torch.stack((self._device_norm, self._device_drops)).tolist()
        gauge.set(norm)
        if drops:
            self._not_finite.add(int(drops))
            self._device_drops.zero_()

    def state(self) -> Arrays:
        found = ((name or "main", optimizer) for name, (_, optimizer, _) in self._parts.items())
        return {f"{name}.optimizer": each.state_vector.cpu().numpy() for name, each in found}

    def load_state(self, state: Arrays) -> None:
        for name, (_, optimizer, _) in self._parts.items():
            saved = torch.from_numpy(state[f"{name or 'main'}.optimizer"])
            optimizer.load(saved)
