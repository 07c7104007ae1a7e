# SPDX-License-Identifier: Apache-2.0
"""Inference servers: one network acts for many groups of environments in one forward pass.

`BatchedPolicy` reads observations from trajectory slots and writes actions, outputs and version
into the same rows. On CUDA it uses its own stream, pinned memory in both directions, and a CUDA
graph for every batch size that recurs. GA3C's predictors and Sample Factory's policy workers are
`SharedMemoryInference` with different rules for when a batch is large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.environments import Environments
from veldt.networks import FlatParameters, Network, NetworkFactory, acting_step
from veldt.ports import ParameterSource, RequestServer
from veldt.role import Part, Role
from veldt.roles.cuda_graphs import CudaGraphs
from veldt.roles.ga3c_tuner import Gate
from veldt.roles.hogwild import SharedModel
from veldt.roles.pacing import Pacing
from veldt.roles.selection import ENVIRONMENT, SampleActions, Selection
from veldt.types import PROVENANCE_ACTOR, PROVENANCE_TURN, PolicyReply, Slot

Tensors = dict[str, torch.Tensor]
State = tuple[torch.Tensor, ...]
ForwardPass = Callable[[Tensors, State], tuple[Any, State]]
"""Observations with "first", and state, on the host; outputs and new state, on the host."""

_MOST_GRAPHS = 16  # each keeps the memory of its activations


def forward_pass(network: Network, device: torch.device) -> ForwardPass:
    if device.type == "cuda":
        return CudaForwardPass(network, device)
    step = acting_step(network)
    return lambda inputs, state: step(inputs, state, inputs["first"])


class CudaForwardPass:
    """Call it in inference mode. It waits without spinning, which would occupy a core."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self._network, self._device = network, device
        self._state_names = [f"state.{name}" for name in network.state_fields()]
        self._stream = torch.cuda.Stream(device)
        self._done = torch.cuda.Event(blocking=True)
        self._recorded = CudaGraphs(self._step, device, _MOST_GRAPHS)
        self.graphs = self._recorded.graphs

    def __call__(self, inputs: Tensors, state: State) -> tuple[Any, State]:
        given = {**inputs, **dict(zip(self._state_names, state, strict=True))}
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # for new weights
        with torch.cuda.stream(self._stream):
            graph = self._recorded.find(given)
            if graph is not None:
                outputs, after = graph.replay(given)
            else:
                moved = {
                    name: entry.to(self._device, non_blocking=True) for name, entry in given.items()
                }
                outputs, after = self._step(moved)
            outputs = type(outputs)(*(_to_host(entry) for entry in outputs))
            after = tuple(_to_host(entry) for entry in after)
            self._done.record(self._stream)
        self._done.synchronize()
        return outputs, after

    def _step(self, given: Tensors) -> tuple[Any, State]:
        state = tuple(given[name] for name in self._state_names)
        return self._network.step(given, state, given["first"])


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True)  # into pinned memory, as PyTorch allocates here


Row = tuple[Slot, int]


@dataclass(eq=False)
class BatchedPolicy(Part):
    """Acts with the newest weights of a board, or with a model that trainers share.

    It keeps the recurrent state of every environment, [groups, width, size]."""

    network: NetworkFactory
    weights: ParameterSource | SharedModel
    selection: Selection = field(default_factory=SampleActions)
    device: str = "cpu"

    def open(
        self,
        context: NodeContext,
        width: int,
        num_groups: int,
        state: np.ndarray | None = None,
        alone: bool = False,
    ) -> None:
        """Prepare to act for at most `num_groups` groups of `width` environments. `state` is memory
        that several servers of one policy share. `alone`: each group has a random stream of its
        own, because each is answered alone."""
        torch.set_num_threads(1)
        self._width, self._num_groups = width, num_groups
        self._device = torch.device(self.device)
        self._network = self.network.blank().to(self._device).eval()
        if isinstance(self.weights, SharedModel):
            self._flat = self.weights.place(self._network, self.device)
        else:
            self._flat = FlatParameters(self._network, self.device)
        self._incoming = np.empty(self._flat.size, np.float32)
        self._forward = forward_pass(self._network, self._device)
        self.version = -1
        self._asked: int | None = None
        self._selections = [copy(self.selection) for _ in range(num_groups if alone else 1)]
        for group, selection in enumerate(self._selections):
            name = f"{context.name}-{group}" if alone else context.name
            selection.open(self._network, replace(context, name=name))
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        if state is None:
            state = np.zeros(state_size(self._network, num_groups, width), np.float32)
        self._states = state_views(self._network, state, width)
        self._batch: dict[str, torch.Tensor] = {}
        self._columns = np.arange(width)

    def refresh(self, version: int | None = None) -> None:
        """Take the newest weights, or exactly this version; a shared model has only the newest."""
        if isinstance(self.weights, SharedModel):
            self.version = self.weights.version()
            return
        if version is None:
            newer = self.weights.pull(self._incoming, newer_than=self.version)
        elif version == self._asked:
            return
        else:  # another group's trajectory may have begun with newer ones
            newer = self.weights.pull(self._incoming, -1, version)
        self._asked = version
        if newer is not None:
            self._flat.load(self._incoming)
            self.version = newer

    def forget(self, group: int) -> None:
        """Reset a group's recurrent state."""
        for memory in self._states:
            memory[group] = 0.0

    def act(self, rows: Sequence[Row], groups: Sequence[int]) -> PolicyReply:
        """One forward pass over `rows`, which belong to `groups`.

        Writes actions, outputs and version into each row, and into rows 0 the recurrent state from
        before it."""
        chosen = list(groups)
        tensors = self._gather(rows)
        first_of_group = np.multiply(chosen, self._width)[:, None]
        with torch.inference_mode():
            outputs, state = self._forward(tensors, self._read_states(rows, chosen))
            tensors[ENVIRONMENT] = torch.from_numpy((first_of_group + self._columns).reshape(-1))
            selection = self._selections[chosen[0] if len(self._selections) > 1 else 0]
            reply = selection(outputs, tensors)
        for memory, tensor in zip(self._states, state, strict=True):
            memory[chosen] = tensor.numpy().reshape(len(chosen), self._width, -1)
        self._write(rows, reply)
        reply.version = self.version
        return reply

    def part(self, position: int) -> slice:
        """The environments of the row at `position` in a reply."""
        return slice(position * self._width, (position + 1) * self._width)

    def _write(self, rows: Sequence[Row], reply: PolicyReply) -> None:
        for position, (slot, row) in enumerate(rows):
            mine = self.part(position)
            slot["action"][row] = reply.action[mine]
            for name, value in reply.outputs.items():
                slot[name][row] = value[mine]
            slot["parameter_version"][row] = self.version

    def _gather(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """Observations of all rows, joined in buffers that are allocated once."""
        names = (*self._network.input_names, "first")
        if not self._batch:
            self._batch = {name: self._room_for(rows[0][0][name]) for name in names}
        for name in names:
            joined = self._batch[name].numpy()
            for position, (slot, row) in enumerate(rows):
                joined[self.part(position)] = slot[name][row]
        used = len(rows) * self._width
        return {name: self._batch[name][:used] for name in names}

    def _room_for(self, example: np.ndarray) -> torch.Tensor:
        shape = (self._num_groups * self._width, *example.shape[2:])
        dtype = torch.from_numpy(example[:0]).dtype
        return torch.zeros(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def _read_states(self, rows: Sequence[Row], groups: list[int]) -> tuple[torch.Tensor, ...]:
        states = []
        for name, memory in zip(self._state_names, self._states, strict=True):
            for (slot, row), group in zip(rows, groups, strict=True):
                if row == 0:
                    slot[name][:] = memory[group]
            joined = memory[groups].reshape(-1, memory.shape[-1])
            states.append(torch.from_numpy(joined))
        return tuple(states)


def recurrent_memory(
    network: NetworkFactory, num_groups: int, environments: Environments
) -> np.ndarray:
    """Memory for the recurrent state of all groups, which the servers of a policy share.

    Args:
        network: Of the policy.
        num_groups: Groups of environments of all actors.
        environments: Their width is that of a group.
    """
    size = state_size(network.outline(), num_groups, environments.width)
    return np.zeros(max(1, size), np.float32)


def state_size(network: Network, num_groups: int, group_width: int) -> int:
    """Float32 numbers that hold the recurrent state of all groups."""
    per_env = sum(int(np.prod(entry.shape)) for entry in network.state_fields().values())
    return num_groups * group_width * per_env


def state_views(network: Network, memory: np.ndarray, width: int) -> list[np.ndarray]:
    """Views [groups, width, size] into `memory`, one per part of the state."""
    sizes = [int(np.prod(entry.shape)) for entry in network.state_fields().values()]
    if not sizes:
        return []
    return np.split(memory.reshape(-1, width, sum(sizes)), np.cumsum(sizes)[:-1], axis=-1)


Request = TypeVar("Request")


@dataclass(frozen=True)
class BatchRule:
    """When a forward pass begins: at `enough` requests, or `patience_seconds` after the first.

    enough = 1 takes all requests at hand (GA3C); enough = half of all groups alternates two halves
    of the population (SEED); something between with a short wait is Sample Factory's."""

    enough: int = 1
    most: int = 64
    patience_seconds: float = 0.0


class BatchedInference(Role, Generic[Request]):
    """Answers several requests in one forward pass, when its rule says so.

    Subclasses `_add` requests, call `_answer_if_due` in every step, and define `_answer`."""

    policy: BatchedPolicy
    rule: BatchRule

    def open(self, context: NodeContext) -> None:
        self._enough, self._clock = self.rule.enough, context.clock
        self._requests: list[Request] = []
        self._first_came_at = 0.0
        telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")

    def device(self) -> str:
        return self.policy.device

    @property
    def max_sleep_seconds(self) -> float:
        return self.rule.patience_seconds if self._requests else float("inf")

    @property
    def _is_full(self) -> bool:
        return len(self._requests) >= self.rule.most

    def _add(self, request: Request) -> None:
        if not self._requests:
            self._first_came_at = self._clock()
        self._requests.append(request)

    def _answer_if_due(self) -> bool:
        if not self._requests:
            return False
        waited = self._clock() - self._first_came_at
        if len(self._requests) < self._enough and waited < self.rule.patience_seconds:
            return False
        requests, self._requests = self._requests, []
        with self._inferring:
            self._answer(requests)
        self._batches.add()
        self._answers.add(len(requests))
        return True

    def _answer(self, requests: list[Request]) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class SharedMemoryInference(BatchedInference[Row]):
    """Answers requests with its newest weights. The recurrent state of every environment is in
    memory that all servers of a policy share, so that any of them may answer any actor.

    With `pacing` each group is answered with the weights that its trajectory is to be acted with;
    on a CPU in a forward pass of its own, so that nothing depends on which requests come
    together."""

    requests: RequestServer
    policy: BatchedPolicy
    rule: BatchRule
    """`rule.most` counts the groups of all actors."""
    state_memory: np.ndarray
    group_width: int
    groups_per_client: int = 1
    gate: Gate | None = None
    pacing: Pacing | None = None

    def open(self, context: NodeContext) -> None:
        # On a GPU a pass per group would be the limit, and the bits of a run differ in any case.
        self._alone = self.pacing is not None and self.policy.device == "cpu"
        width, most = self.group_width, self.rule.most
        self.policy.open(context, width, most, self.state_memory, self._alone)
        if self.gate is not None:
            self.gate.open(context)
        super().open(context)

    def step(self) -> bool:
        if self.gate is None or self.gate.is_open():
            while not self._is_full and (request := self.requests.take()):
                self._add(request)
        return self._answer_if_due()

    def _answer(self, requests: list[Row]) -> None:
        if self.pacing is None:
            self.policy.refresh()
            self._act(requests)
            return
        requests.sort(key=_turn)  # the fewest loads of weights
        for version, due in groupby(requests, self._version):
            self.policy.refresh(version)
            for together in ([row] for row in due) if self._alone else [list(due)]:
                self._act(together)

    def _version(self, request: Row) -> int:
        assert self.pacing is not None
        return self.pacing.version(_turn(request))

    def _act(self, requests: list[Row]) -> None:
        actors = [int(slot["provenance"][0, PROVENANCE_ACTOR]) for slot, _ in requests]
        self.policy.act(requests, actors)
        for (slot, row), actor in zip(requests, actors, strict=True):
            self.requests.answer(slot, row, actor // self.groups_per_client)


def _turn(request: Row) -> int:
    slot, _ = request
    return int(slot["provenance"][0, PROVENANCE_TURN])
