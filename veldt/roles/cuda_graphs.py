# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of what learners and inference servers compute.

Launching kernels is what small batches pay for on a GPU: the Nature network's update is some 300
kernels of a few microseconds each. A graph launches them with one call, and with the optimizer's
step in it the device never waits for the host within a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from veldt.devices import RECORDING, Completion
from veldt.losses import Loss, Objective, Tensors
from veldt.networks import FlatParameters
from veldt.ports import DeviceStep

Result = TypeVar("Result")

_USES_BEFORE_GRAPH = 2
_MOST_LEARNER_GRAPHS = 8  # each keeps the memory of its activations
_MOST_CHANGES = 8  # of the constants; an objective that changes them always gets no graph


class CudaGraph(Generic[Result]):
    """A function of tensors of one shape, recorded; it reads the weights in place.

    `then` is recorded after it, and is not called for the recording itself."""

    def __init__(
        self,
        function: Callable[[Tensors], Result],
        inputs: Tensors,
        device: torch.device,
        then: Callable[[Result], None] | None = None,
    ) -> None:
        self._inputs = {name: entry.to(device, copy=True) for name, entry in inputs.items()}
        self._copied: Tensors = {}
        # A first pass on another stream, in which libraries choose their kernels and allocate.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            function(self._inputs)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of the process continue to allocate; by default PyTorch would record the
        # calls of all threads.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._result = function(self._inputs)
            if then is not None:
                then(self._result)

    def replay(self, inputs: Tensors) -> Result:
        """The result; it is complete once the device is done, and valid until the next call."""
        for name, entry in self._inputs.items():
            # The parts of a batch share its rows; only their index differs.
            if self._copied.get(name) is not inputs[name]:
                entry.copy_(inputs[name], non_blocking=True)
        self._copied = inputs
        self._graph.replay()
        return self._result


class CudaGraphs(Generic[Result]):
    """The graphs of a function, one for each combination of shapes that recurs; at most `most`."""

    def __init__(
        self,
        function: Callable[[Tensors], Result],
        device: torch.device,
        most: int,
        then: Callable[[Result], None] | None = None,
    ) -> None:
        self._function, self._device, self._most, self._then = function, device, most, then
        self._uses: Counter[object] = Counter()
        self._can_be_recorded = True
        self.graphs: dict[object, CudaGraph[Result]] = {}

    def find(self, inputs: Tensors) -> CudaGraph[Result] | None:
        """The graph for inputs of these shapes, recorded now if they recur."""
        shapes = tuple((name, entry.shape) for name, entry in inputs.items())
        if shapes not in self.graphs and self._can_be_recorded and len(self.graphs) < self._most:
            self._uses[shapes] += 1
            if self._uses[shapes] > _USES_BEFORE_GRAPH:
                self._record(shapes, inputs)
        return self.graphs.get(shapes)

    def _record(self, shapes: object, inputs: Tensors) -> None:
        try:
            with RECORDING:
                graph = CudaGraph(self._function, inputs, self._device, self._then)
            self.graphs[shapes] = graph
        except RuntimeError:  # a user's network may read a value, which cannot be recorded
            self._can_be_recorded = False

    def clear(self) -> None:
        self.graphs.clear()
        self._uses.clear()


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
        self._scale = torch.ones((), device=device)
        then = None if step is None else self._take_step
        self._recorded = CudaGraphs(self._differentiate, device, _MOST_LEARNER_GRAPHS, then)
        self._recorded_with: object | None = None
        self._changes = 0
        self.graphs = self._recorded.graphs

    def __call__(self, part: Tensors, learning_rate_scale: float = 1.0) -> tuple[Loss, bool]:
        """The loss, and whether the weights have had their step already."""
        graph = self._recorded.find(part) if self._may_record() else None
        if graph is None:
            with RECORDING:
                loss = self._differentiate(part)
        else:
            self._scale.fill_(learning_rate_scale)
            loss = graph.replay(part)
        has_stepped = graph is not None and self._step is not None
        if not has_stepped:
            self._completion.wait()
        return loss, has_stepped

    def _differentiate(self, part: Tensors) -> Loss:
        self._flat.zero_gradient()
        loss = self._objective(part)
        loss.total.backward()
        # Autograd's nodes belong to a stream: kept alive, they would disturb the next recording.
        return loss.detached()

    def _take_step(self, loss: Loss) -> None:
        assert self._step is not None
        self._step(self._scale * loss.learning_rate_scale)

    def _may_record(self) -> bool:
        """Whether graphs may be used; those of other constants are discarded."""
        constants = self._objective.constants()
        if constants != self._recorded_with:
            self._recorded.clear()
            self._recorded_with = constants
            self._changes += 1
        return constants is not None and self._changes <= _MOST_CHANGES
