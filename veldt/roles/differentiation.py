# SPDX-License-Identifier: Apache-2.0
"""A loss and its gradient, launched kernel by kernel or, on CUDA, as one recorded graph.

Launching is what small batches pay for on a GPU: the Nature network's update is some 300 kernels of
a few microseconds each. A graph launches them with one call, and with the optimizer's step in it
the device never waits for the host within a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veldt.devices import RECORDING, Completion
from veldt.losses import Loss, Objective, Tensors
from veldt.networks import FlatParameters
from veldt.ports import UnseenStep

Shapes = tuple[tuple[str, torch.Size], ...]

_USES_BEFORE_GRAPH = 2
_MOST_GRAPHS = 8  # each keeps the memory of its activations
_MOST_CHANGES = 8  # of what a graph was recorded with; an objective that changes always has none


class Differentiated(NamedTuple):
    """A loss whose gradient has been taken."""

    loss: Loss
    is_applied: bool = False
    """Whether the weights have had their step already."""


class Differentiation:
    """Called with a part of a batch: the gradient of `objective` is then in `flat`."""

    def __init__(self, objective: Objective, flat: FlatParameters, device: torch.device) -> None:
        self._objective, self._flat = objective, flat
        self._completion = Completion(device)

    def __call__(self, part: Tensors, learning_rate_scale: float = 1.0) -> Differentiated:
        loss = self._differentiate(part)
        self._completion.wait()
        return Differentiated(loss)

    def _differentiate(self, part: Tensors) -> Loss:
        self._flat.zero_gradient()
        loss = self._objective(part)
        loss.total.backward()
        return _without_gradient(loss)


class RecordedDifferentiation(Differentiation):
    """The same on CUDA: shapes that come back are recorded, if the objective allows it, and the
    optimizer's step with them, if it needs no host. The device is then not waited for."""

    def __init__(
        self,
        objective: Objective,
        flat: FlatParameters,
        device: torch.device,
        step: UnseenStep | None = None,
    ) -> None:
        super().__init__(objective, flat, device)
        self._step = step
        self._uses: Counter[Shapes] = Counter()
        self._recorded_with: object | None = None
        self._changes = 0
        self._can_be_recorded = True
        self.graphs: dict[Shapes, _Graph] = {}

    def __call__(self, part: Tensors, learning_rate_scale: float = 1.0) -> Differentiated:
        shapes = tuple((name, entry.shape) for name, entry in part.items())
        if self._may_record() and shapes not in self.graphs:
            self._uses[shapes] += 1
            if self._uses[shapes] > _USES_BEFORE_GRAPH and len(self.graphs) < _MOST_GRAPHS:
                self._record(shapes, part)
        if shapes not in self.graphs:
            with RECORDING:
                loss = self._differentiate(part)
            self._completion.wait()
            return Differentiated(loss)
        loss = self.graphs[shapes].replay(part, learning_rate_scale)
        if self._step is None:
            self._completion.wait()
        return Differentiated(loss, is_applied=self._step is not None)

    def _may_record(self) -> bool:
        """Whether graphs hold, and further ones are worth it. Those of other constants are gone."""
        constants = self._objective.constants()
        if constants != self._recorded_with:
            self.graphs.clear()
            self._uses.clear()
            self._recorded_with = constants
            self._changes += 1
        return constants is not None and self._can_be_recorded and self._changes <= _MOST_CHANGES

    def _record(self, shapes: Shapes, part: Tensors) -> None:
        """A user's network may do what cannot be recorded, such as look at a value; it then runs
        as it is."""
        try:
            with RECORDING:
                self.graphs[shapes] = _Graph(self._differentiate, self._step, part)
        except RuntimeError:
            self._can_be_recorded = False


class _Graph:
    """Loss, gradient and step of parts of one shape. It reads the weights where they always lie."""

    def __init__(
        self,
        differentiate: Callable[[Tensors], Loss],
        step: UnseenStep | None,
        part: Tensors,
    ) -> None:
        self._part = {name: entry.clone() for name, entry in part.items()}
        self._copied: dict[str, Tensor] = {}
        self._scale = torch.ones((), device=next(iter(part.values())).device)
        self._known_scale = 1.0
        # Beforehand, away from the usual stream: libraries choose their kernels and allocate.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            differentiate(self._part)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Inference in another thread goes on allocating; only this thread's calls are recorded. By
        # itself PyTorch would record all threads on the same stream.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._loss = differentiate(self._part)
            if step is not None:
                step(self._scale * self._loss.learning_rate_scale)

    def replay(self, part: Tensors, learning_rate_scale: float) -> Loss:
        """The loss is there once the device is done, and until the next call."""
        for name, entry in self._part.items():
            # All parts of a batch share its rows; only their index is another.
            if self._copied.get(name) is not part[name]:
                entry.copy_(part[name], non_blocking=True)
        self._copied = part
        if learning_rate_scale != self._known_scale:
            self._scale.fill_(learning_rate_scale)
            self._known_scale = learning_rate_scale
        self._graph.replay()
        return self._loss


def differentiation(
    objective: Objective, flat: FlatParameters, device: torch.device, step: UnseenStep | None
) -> Differentiation:
    """The quickest that `device` has."""
    if device.type == "cuda":
        return RecordedDifferentiation(objective, flat, device, step)
    return Differentiation(objective, flat, device)


def _without_gradient(loss: Loss) -> Loss:
    """What is left of it once the gradient is known: a loss that holds on to the graph of autograd
    would keep its nodes, which belong to a stream, alive while another one records."""
    scale = loss.learning_rate_scale
    return Loss(
        loss.total.detach(),
        {name: value.detach() for name, value in loss.metrics.items()},
        None if loss.priorities is None else loss.priorities.detach(),
        scale if isinstance(scale, float) else scale.detach(),
    )
