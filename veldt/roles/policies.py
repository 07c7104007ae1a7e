# SPDX-License-Identifier: Apache-2.0
"""Policies of actors: with a local copy of the weights, or asking an inference server.

`LocalPolicy` runs the network itself. `SharedMemoryPolicy` sends row numbers to a server in the
same memory. `StreamPolicy` sends each row's observation and the environment's answer to the row
before; the server assembles trajectories.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import FlatParameters, NetworkFactory, acting_step, make_distribution
from veldt.ports import ParameterSource, Policy, RequestClient, StreamClient
from veldt.role import Part
from veldt.roles.selection import SampleActions, Selection
from veldt.types import (
    ACTION_MASK,
    ActionSpec,
    Field,
    Layout,
    PolicyReply,
    Slot,
    is_answer_of_environment,
    slots_over,
)

State = tuple[torch.Tensor, ...]


@dataclass(eq=False)
class LocalPolicy(Policy):
    """Answers at once, with the weights of the last refresh."""

    network: NetworkFactory
    weights: ParameterSource
    selection: Selection = field(default_factory=SampleActions)
    refresh_rows: int = 0
    """Rows between two refreshes; 0: only at the start of each trajectory."""

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        self._network = self.network.blank().eval()  # weights come from the board
        self._vector = FlatParameters(self._network).numpy()
        self._step = acting_step(self._network)
        self.selection.open(self._network, context)
        self._version, self._rows_since_refresh = -1, self.refresh_rows
        self._states: list[State] = [self._network.initial_state(width) for width in widths]
        self._state_names = [f"state.{name}" for name in self._network.state_fields()]
        self._replies: list[PolicyReply | None] = [None for _ in widths]

    def refresh(self, version: int | None = None) -> None:
        if self._rows_since_refresh >= self.refresh_rows:
            self._pull(None if self.refresh_rows else version)

    def _pull(self, at_most: int | None = None) -> None:
        newer = self.weights.pull(self._vector, self._version, at_most)
        if newer is not None:
            self._version = newer
        self._rows_since_refresh = 0

    def request(self, group: int, slot: Slot, row: int) -> None:
        if self.refresh_rows and self._rows_since_refresh >= self.refresh_rows:
            self._pull()
        self._rows_since_refresh += 1
        arrays, state, network = slot.arrays, self._states[group], self._network
        if row == 0:
            for name, tensor in zip(self._state_names, state, strict=True):
                arrays[name][:] = tensor.numpy()
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(arrays[name][row]) for name in network.input_names}
            first = torch.from_numpy(arrays["first"][row])
            outputs, self._states[group] = self._step(tensors, state, first)
            reply = self.selection(outputs, tensors)
        reply.version = self._version
        self._replies[group] = reply

    def reply(self, group: int) -> PolicyReply | None:
        return self._replies[group]


@dataclass(eq=False)
class SharedMemoryPolicy(Policy):
    """Sends row numbers; the server writes actions, outputs and version into the row itself.

    Of the network it only uses the distribution of actions."""

    network: NetworkFactory
    requests: RequestClient

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        config, action = self.network.config, self.network.spec.action
        self._distribution = make_distribution(action, config.distribution)
        self._asked: list[tuple[Slot, int] | None] = [None for _ in widths]
        self._answered: set[int] = set()

    def request(self, group: int, slot: Slot, row: int) -> None:
        self._asked[group] = (slot, row)
        self.requests.send(slot, row)

    def reply(self, group: int) -> PolicyReply | None:
        self._collect()
        asked = self._asked[group]
        if asked is None or group not in self._answered:
            return None
        self._answered.discard(group)
        self._asked[group] = None
        slot, row = asked
        action = slot["action"][row]
        version = int(slot["parameter_version"][row, 0])
        return PolicyReply(action, self._distribution.env_action(action), {}, version)

    def _collect(self) -> None:
        while (answer := self.requests.answered()) is not None:
            for group, asked in enumerate(self._asked):
                # An answer to an earlier incarnation of this actor matches no open request.
                if asked is not None and (asked[0].index, asked[1]) == answer:
                    self._answered.add(group)


ENV_ACTION = "env_action"


def request_layout(trajectories: Layout) -> Layout:
    """Layout of one row's observations and of the environment's answers."""
    fields = {}
    for name, spec in trajectories.items():
        seen = name.split(".")[0] == "observation" or name in (ACTION_MASK, "first")
        if seen or is_answer_of_environment(name):
            fields[name] = Field(spec.shape[1:], spec.dtype)
    # Sorted by type, so that the receiver checks all numbers, and all flags, at once.
    return Layout(tuple(sorted(fields.items(), key=lambda entry: entry[1].dtype)))


def scratch_layout(trajectories: Layout) -> Layout:
    """Layout of the actor's own slots, without fields that only the server writes."""
    known = {*request_layout(trajectories), "action", "parameter_version"}
    fields = {
        name: Field((SCRATCH_STEPS + 1, *spec.shape[1:]), spec.dtype, spec.join_axis)
        for name, spec in trajectories.items()
        if name in known
    }
    return Layout((*fields.items(), ("provenance", trajectories["provenance"])))


def stream_layouts(trajectories: Layout, action: ActionSpec) -> tuple[Layout, Layout]:
    """Layouts of the request and the answer of each row of `trajectories`.

    The answer is one action per environment, whatever the network is."""
    actions = Field((trajectories["first"].shape[1], *action.shape), action.field_dtype)
    return request_layout(trajectories), Layout.of(**{ENV_ACTION: actions})


SCRATCH_STEPS = 8


@dataclass(eq=False)
class ScratchSink(Part):
    """A sink for an actor whose trajectories are assembled elsewhere: a few rows that are reused.

    There is one more slot than groups, because the last row of a group's old slot is still needed
    while row 0 of its next one is sent."""

    trajectories: Layout
    num_groups: int = 1

    @cached_property
    def _free(self) -> deque[Slot]:
        layout, count = scratch_layout(self.trajectories), self.num_groups + 1
        return deque(slots_over(layout, np.zeros(count * layout.nbytes, np.uint8), count))

    def reserve(self) -> Slot:
        return self._free.popleft()

    def commit(self, slot: Slot) -> None:
        self._free.append(slot)


@dataclass(eq=False)
class StreamPolicy(Policy):
    """Sends each row over a stream. It has neither network nor weights nor recurrent state."""

    layout: Layout
    """Layout of the rows that are sent."""
    stream: StreamClient

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        buffer = np.zeros(len(widths) * self.layout.nbytes, np.uint8)
        self._outgoing = slots_over(self.layout, buffer, len(widths))
        self._seen = [name for name in self.layout if not is_answer_of_environment(name)]
        self._answered = [name for name in self.layout if is_answer_of_environment(name)]
        self._last: list[tuple[Slot, int] | None] = [None for _ in widths]
        self._replies: list[PolicyReply | None] = [None for _ in widths]
        self._bytes_up = context.telemetry.counter("wire.bytes_up")
        self._bytes_down = context.telemetry.counter("wire.bytes_down")
        self.stream.connect(context.incarnation)

    def request(self, group: int, slot: Slot, row: int) -> None:
        message, last = self._outgoing[group], self._last[group]
        for name in self._seen:
            message[name][:] = slot[name][row]
        if last is not None:
            last_slot, last_row = last
            for name in self._answered:
                message[name][:] = last_slot[name][last_row]
        self._last[group] = (slot, row)
        self.stream.send(group, message.raw.tobytes())
        self._bytes_up.add(message.raw.size)

    def reply(self, group: int) -> PolicyReply | None:
        while (answer := self.stream.receive()) is not None:
            answered, arrays = answer
            action = arrays[ENV_ACTION]
            self._replies[answered] = PolicyReply(action, action, {}, 0)
            self._bytes_down.add(action.nbytes)
        reply, self._replies[group] = self._replies[group], None
        return reply
