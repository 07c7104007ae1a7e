# SPDX-License-Identifier: Apache-2.0
"""A network's forward pass for observations that lie in host memory, whatever device it is on.

On CUDA: a stream of its own beside the learner's, pinned memory in both directions, and a CUDA
graph for every batch size that keeps coming back, which launches all kernels with one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from veldt.devices import RECORDING
from veldt.networks import Network, acting_step

Tensors = dict[str, torch.Tensor]
State = tuple[torch.Tensor, ...]
ForwardPass = Callable[[Tensors, State], tuple[Any, State]]
"""Observations with "first", and state, on the host; outputs and new state, on the host."""

_USES_BEFORE_GRAPH = 3
_MOST_GRAPHS = 16  # each keeps the memory of its activations


def forward_pass(network: Network, device: torch.device) -> ForwardPass:
    if device.type == "cuda":
        return CudaForwardPass(network, device)
    step = acting_step(network)
    return lambda inputs, state: step(inputs, state, inputs["first"])


def host_room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on the host that `device` can read without a copy in between."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


class CudaForwardPass:
    """Call it in inference mode. Waits without spinning, which would cost environments a core."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self._network, self._device = network, device
        self._stream = torch.cuda.Stream(device)
        self._done = torch.cuda.Event(blocking=True)
        self._uses: Counter[int] = Counter()
        self._can_be_recorded = True
        self.graphs: dict[int, _Graph] = {}
        """By number of rows."""

    def __call__(self, inputs: Tensors, state: State) -> tuple[Any, State]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # new weights came there
        with torch.cuda.stream(self._stream):
            outputs, after = self._run(inputs, state)
            outputs = type(outputs)(*(_to_host(entry) for entry in outputs))
            after = tuple(_to_host(entry) for entry in after)
            self._done.record(self._stream)
        self._done.synchronize()
        return outputs, after

    def _run(self, inputs: Tensors, state: State) -> tuple[Any, State]:
        rows = len(inputs["first"])
        if rows not in self.graphs and self._is_worth_a_graph(rows):
            self._record(rows, *self._moved(inputs, state))
        if rows in self.graphs:
            return self.graphs[rows].replay(inputs, state)
        moved, before = self._moved(inputs, state)
        return self._network.step(moved, before, moved["first"])

    def _is_worth_a_graph(self, rows: int) -> bool:
        self._uses[rows] += 1
        enough = self._uses[rows] >= _USES_BEFORE_GRAPH and len(self.graphs) < _MOST_GRAPHS
        return enough and self._can_be_recorded

    def _record(self, rows: int, inputs: Tensors, state: State) -> None:
        """A user's network may do what cannot be recorded, such as look at a value; it then runs
        as it is."""
        try:
            with RECORDING:
                self.graphs[rows] = _Graph(self._network, inputs, state, self._stream)
        except RuntimeError:
            self._can_be_recorded = False

    def _moved(self, inputs: Tensors, state: State) -> tuple[Tensors, State]:
        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._device, non_blocking=True)

        return {name: moved(entry) for name, entry in inputs.items()}, tuple(map(moved, state))


class _Graph:
    """The pass over one number of rows, recorded. It reads the weights where they always lie."""

    def __init__(
        self, network: Network, inputs: Tensors, state: State, stream: torch.cuda.Stream
    ) -> None:
        self._inputs, self._state = inputs, state
        network.step(inputs, state, inputs["first"])  # libraries choose and allocate beforehand
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # A learner in another thread goes on allocating; only this thread's calls are recorded.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._results = network.step(inputs, state, inputs["first"])

    def replay(self, inputs: Tensors, state: State) -> tuple[Any, State]:
        for name, entry in self._inputs.items():
            entry.copy_(inputs[name], non_blocking=True)
        for entry, new in zip(self._state, state, strict=True):
            entry.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._results


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True)  # into pinned memory, as PyTorch allocates here
