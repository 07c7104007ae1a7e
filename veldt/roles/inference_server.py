# SPDX-License-Identifier: Apache-2.0
"""The inference server: one forward pass for the questions of many actors.

GA3C's predictors, SEED's server and Sample Factory's policy workers are this role with different rules
for when a batch is large enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, Network
from veldt.ports import ParameterSource
from veldt.roles.policy import SampleActions, Selection
from veldt.types import PROVENANCE_ACTOR, Slot


class AnswerPort(Protocol):
    """The answering end of a request channel."""

    def take(self) -> tuple[Slot, int] | None: ...

    def answer(self, slot: Slot, row: int, client: int) -> None: ...


@dataclass(frozen=True)
class BatchRule:
    """When a forward pass begins: at `enough` requests, or `patience_seconds` after the first.

    enough = 1 takes what is there (GA3C); enough = half of all groups alternates two halves of the
    population (SEED); something between with a short patience is Sample Factory's."""

    enough: int = 1
    most: int = 64
    patience_seconds: float = 0.0


class InferenceServer:
    """Answers requests with its newest weights; keeps the recurrent state of every environment in
    memory that all servers of a policy share, so that any of them may answer any actor."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        requests: AnswerPort,
        parameters: ParameterSource,
        make_network: Callable[[], Network],
        group_width: int,
        groups_per_client: int,
        rule: BatchRule,
        state: np.ndarray | None = None,
        make_selection: Callable[..., Selection] = SampleActions,
        device: str = "cpu",
        torch_threads: int = 1,
    ) -> None:
        torch.set_num_threads(torch_threads)
        self._device = torch.device(device)
        self._requests, self._parameters, self._rule = requests, parameters, rule
        self._network = make_network().to(self._device).eval()
        self._flat = FlatParameters(self._network, device)
        self._incoming = np.empty(self._flat.size, np.float32)
        self._version = -1
        self._select = make_selection(self._network, context, device)
        self._width, self._groups_per_client = group_width, groups_per_client
        self._open: list[tuple[Slot, int]] = []
        self._opened_at = 0.0
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        self._states = _state_memory(self._network, state, group_width)
        self._batch: dict[str, np.ndarray] = {}
        telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")

    @property
    def patience_seconds(self) -> float:
        """How long this node may sleep although it has something to do soon."""
        return self._rule.patience_seconds if self._open else float("inf")

    def step(self) -> bool:
        while len(self._open) < self._rule.most and (request := self._requests.take()):
            if not self._open:
                self._opened_at = time.monotonic()
            self._open.append(request)
        if not self._is_time():
            return False
        with self._inferring:
            self._refresh()
            self._answer(self._open)
        self._batches.add()
        self._answers.add(len(self._open))
        self._open = []
        return True

    def _is_time(self) -> bool:
        if not self._open:
            return False
        waited = time.monotonic() - self._opened_at
        return len(self._open) >= self._rule.enough or waited >= self._rule.patience_seconds

    def _refresh(self) -> None:
        newer = self._parameters.pull(self._incoming, newer_than=self._version)
        if newer is not None:
            self._flat.load(self._incoming)
            self._version = newer

    def _answer(self, requests: list[tuple[Slot, int]]) -> None:
        actors = [int(slot["provenance"][0, PROVENANCE_ACTOR]) for slot, _ in requests]
        tensors = self._gather(requests)
        with torch.inference_mode():
            state = self._read_states(requests, actors)
            outputs, state = self._network.step(tensors, state, tensors["first"])
            reply = self._select(outputs, tensors)
        self._write_states(actors, state)
        width = self._width
        for position, (slot, row) in enumerate(requests):
            mine = slice(position * width, (position + 1) * width)
            slot["action"][row] = reply.action[mine]
            for name, value in reply.outputs.items():
                slot[name][row] = value[mine]
            slot["parameter_version"][row] = self._version
            self._requests.answer(slot, row, actors[position] // self._groups_per_client)

    def _gather(self, requests: list[tuple[Slot, int]]) -> dict[str, torch.Tensor]:
        """Observations of all requests side by side, in buffers allocated once."""
        names = (*self._network.input_names, "first")
        if len(requests) == 1:
            slot, row = requests[0]
            return {name: self._tensor(slot[name][row]) for name in names}
        if not self._batch:
            self._batch = {name: self._room_for(requests[0][0][name]) for name in names}
        width = self._width
        for name in names:
            rows = self._batch[name]
            for position, (slot, row) in enumerate(requests):
                rows[position * width : (position + 1) * width] = slot[name][row]
        used = len(requests) * width
        return {name: self._tensor(self._batch[name][:used]) for name in names}

    def _room_for(self, example: np.ndarray) -> np.ndarray:
        return np.zeros((self._rule.most * self._width, *example.shape[2:]), example.dtype)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _read_states(
        self, requests: list[tuple[Slot, int]], actors: list[int]
    ) -> tuple[torch.Tensor, ...]:
        states = []
        for name, memory in zip(self._state_names, self._states, strict=True):
            for (slot, row), actor in zip(requests, actors, strict=True):
                if row == 0:
                    slot[name][:] = memory[actor]
            joined = memory[actors].reshape(-1, memory.shape[-1])
            states.append(torch.from_numpy(joined).to(self._device))
        return tuple(states)

    def _write_states(self, actors: list[int], state: tuple[torch.Tensor, ...]) -> None:
        for memory, tensor in zip(self._states, state, strict=True):
            memory[actors] = tensor.cpu().numpy().reshape(len(actors), self._width, -1)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


def state_size(network: Network, num_groups: int, group_width: int) -> int:
    """Float32 numbers that hold the recurrent state of all groups."""
    per_env = sum(int(np.prod(entry.shape)) for entry in network.state_fields().values())
    return num_groups * group_width * per_env


def _state_memory(network: Network, memory: np.ndarray | None, width: int) -> list[np.ndarray]:
    """Views [groups, width, size] into the shared memory, one per part of the state."""
    sizes = [int(np.prod(entry.shape)) for entry in network.state_fields().values()]
    if not sizes:
        return []
    assert memory is not None, "a recurrent policy needs memory for its state"
    num_groups = memory.size // (sum(sizes) * width)
    views, start = [], 0
    for size in sizes:
        stop = start + num_groups * width * size
        views.append(memory[start:stop].reshape(num_groups, width, size))
        start = stop
    return views
