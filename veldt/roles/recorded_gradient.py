# SPDX-License-Identifier: Apache-2.0
"""A loss and its gradient on CUDA, recorded as one graph.

Launching kernels is what small batches pay for on a GPU: the Nature network's update is some 300
kernels of a few microseconds each. A graph launches them with one call, and with the optimizer's
step in it the device never waits for the host within a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from veldt.devices import RECORDING, Completion
from veldt.losses import Loss, Objective, Tensors
from veldt.networks import FlatParameters
from veldt.ports import DeviceStep

Shapes = tuple[tuple[str, torch.Size], ...]

_USES_BEFORE_GRAPH = 2
_MOST_GRAPHS = 8  # each keeps the memory of its activations
_MOST_CHANGES = 8  # of the constants; an objective that changes them always gets no graph


class RecordedGradient:
    """Called with a part of a batch: the gradient of `objective` is then in `flat`.

    Shapes that come back are recorded, if the objective allows it, and the optimizer's step with
    them, if it needs no host. The device is not waited for then."""

    def __init__(
        self,
        objective: Objective,
        flat: FlatParameters,
        device: torch.device,
        step: DeviceStep | None = None,
    ) -> None:
        self._objective, self._flat, self._step = objective, flat, step
        self._completion = Completion(device)
        self._uses: Counter[Shapes] = Counter()
        self._recorded_with: object | None = None
        self._changes = 0
        self._can_be_recorded = True
        self.graphs: dict[Shapes, _Graph] = {}

    def __call__(self, part: Tensors, learning_rate_scale: float = 1.0) -> tuple[Loss, bool]:
        """The loss, and whether the weights have had their step already."""
        shapes = tuple((name, entry.shape) for name, entry in part.items())
        if self._may_record() and shapes not in self.graphs:
            self._uses[shapes] += 1
            if self._uses[shapes] > _USES_BEFORE_GRAPH and len(self.graphs) < _MOST_GRAPHS:
                self._record(shapes, part)
        if shapes not in self.graphs:
            with RECORDING:
                loss = self._differentiate(part)
            self._completion.wait()
            return loss, False
        loss = self.graphs[shapes].replay(part, learning_rate_scale)
        if self._step is None:
            self._completion.wait()
        return loss, self._step is not None

    def _differentiate(self, part: Tensors) -> Loss:
        self._flat.zero_gradient()
        loss = self._objective(part)
        loss.total.backward()
        # Autograd's nodes belong to a stream: kept alive, they would disturb the next recording.
        return loss.detached()

    def _may_record(self) -> bool:
        """Whether graphs may be used; those of other constants are discarded."""
        constants = self._objective.constants()
        if constants != self._recorded_with:
            self.graphs.clear()
            self._uses.clear()
            self._recorded_with = constants
            self._changes += 1
        return constants is not None and self._can_be_recorded and self._changes <= _MOST_CHANGES

    def _record(self, shapes: Shapes, part: Tensors) -> None:
        try:
            with RECORDING:
                self.graphs[shapes] = _Graph(self._differentiate, self._step, part)
        except RuntimeError:  # a user's network may read a value, which cannot be recorded
            self._can_be_recorded = False


class _Graph:
    """Loss, gradient and step of parts of one shape; it reads the weights in place."""

    def __init__(
        self,
        differentiate: Callable[[Tensors], Loss],
        step: DeviceStep | None,
        part: Tensors,
    ) -> None:
        self._part = {name: entry.clone() for name, entry in part.items()}
        self._copied: dict[str, Tensor] = {}
        self._scale = torch.ones((), device=next(iter(part.values())).device)
        self._known_scale = 1.0
        # A first pass on another stream, in which libraries choose their kernels and allocate.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            differentiate(self._part)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Inference in another thread continues to allocate; by default PyTorch would record the
        # calls of all threads.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._loss = differentiate(self._part)
            if step is not None:
                step(self._scale * self._loss.learning_rate_scale)

    def replay(self, part: Tensors, learning_rate_scale: float) -> Loss:
        """The loss; it is complete once the device is done, and valid until the next call."""
        for name, entry in self._part.items():
            # The parts of a batch share its rows; only their index differs.
            if self._copied.get(name) is not part[name]:
                entry.copy_(part[name], non_blocking=True)
        self._copied = part
        if learning_rate_scale != self._known_scale:
            self._scale.fill_(learning_rate_scale)
            self._known_scale = learning_rate_scale
        self._graph.replay()
        return self._loss
