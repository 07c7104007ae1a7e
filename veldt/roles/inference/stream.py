# SPDX-License-Identifier: Apache-2.0
"""SEED's server: answers the rows that actors stream in, and keeps them as trajectories.

Actors hold no weights and store nothing. Recurrent state, last action and unfinished trajectories
of every environment live here, beside the learner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperienceSink, ReceivedRow, StreamServer
from veldt.role import Role
from veldt.roles.inference.batch_rule import BatchRule, OpenRequests
from veldt.roles.inference.batched_policy import BatchedPolicy
from veldt.roles.inference.trajectory_assembler import TrajectoryAssembler
from veldt.roles.policies.stream import ENV_ACTION
from veldt.types import Layout, Slot, slots_over

_Placed = tuple[ReceivedRow, Slot, int]


@dataclass(eq=False)
class StreamInference(Role):
    """Batches rows of many actors into one forward pass with the newest weights. While the learner
    is behind, rows wait unanswered, which is how actors are slowed down.

    `answer` is the layout of what is sent back; `rule.most` counts the groups of all actors. When
    it dies, actors connect to its successor and ask again; what it had not handed over is lost."""

    stream: StreamServer
    policy: BatchedPolicy
    sink: ExperienceSink
    rule: BatchRule
    answer: Layout
    groups_per_client: int = 1

    def open(self, context: NodeContext) -> None:
        self._open: OpenRequests[_Placed] = OpenRequests(self.rule, context.clock)
        self._homeless: list[ReceivedRow] = []
        num_groups, width = self.rule.most, self.answer[ENV_ACTION].shape[0]
        self._assembler = TrajectoryAssembler(self.sink, num_groups)
        self.policy.open(context, width, num_groups)
        buffer = np.zeros(self.answer.nbytes, np.uint8)
        self._answer_buffer = slots_over(self.answer, buffer, 1)[0]
        self._count(context)

    def device(self) -> str:
        return self.policy.device

    def _count(self, context: NodeContext) -> None:
        self._telemetry = telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._assembling = telemetry.stage("assemble")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")
        self._dropped = telemetry.counter("dropped.broken_connection")
        self._connections = telemetry.counter("wire.connections")
        self._refused_seen: dict[str, int] = {}

    @property
    def patience_seconds(self) -> float:
        """How long this node may sleep although it has something to do soon."""
        return self._open.patience_seconds

    def step(self) -> bool:
        with self._assembling:
            received = self._take()
        self._count_refusals()
        placed = self._open.take_if_due()
        if not placed:
            return received
        with self._inferring:
            self._answer(placed)
        self._batches.add()
        self._answers.add(len(placed))
        return True

    def _take(self) -> bool:
        homeless, self._homeless = self._homeless, []
        for waiting in homeless:
            self._place(waiting)
        received = False
        while not self._open.is_full and (row := self.stream.take()) is not None:
            number = self._number(row)
            if self._assembler.is_new_connection(number, row):
                self._begin_anew(number, row)
            self._assembler.receive(number, row)
            self._place(row)
            received = True
        return received

    def _number(self, row: ReceivedRow) -> int:
        """The group's place among those of all actors."""
        return row.client * self.groups_per_client + row.group

    def _begin_anew(self, number: int, row: ReceivedRow) -> None:
        """Nobody waits for what the group asked on an earlier connection."""
        self._open.discard(lambda placed: self._number(placed[0]) == number)
        self._homeless = [other for other in self._homeless if self._number(other) != number]
        before = self._assembler.dropped
        self._assembler.begin_anew(number, row)
        self.policy.forget(number)
        self._connections.add()
        self._dropped.add(self._assembler.dropped - before)

    def _place(self, row: ReceivedRow) -> None:
        place = self._assembler.place(self._number(row), row)
        if place is None:
            self._homeless.append(row)
        else:
            self._open.add((row, *place))

    def _answer(self, placed: list[_Placed]) -> None:
        self.policy.refresh()
        rows = [(slot, number) for _, slot, number in placed]
        reply = self.policy.act(rows, [self._number(row) for row, _, _ in placed])
        for position, (row, _, _) in enumerate(placed):
            self._answer_buffer[ENV_ACTION][:] = reply.env_action[self.policy.part(position)]
            self.stream.answer(row, self._answer_buffer.raw.tobytes())

    def _count_refusals(self) -> None:
        refused = self.stream.refused
        if refused == self._refused_seen:
            return
        refused = dict(refused)
        for reason, count in refused.items():
            more = count - self._refused_seen.get(reason, 0)
            self._telemetry.counter(f"dropped.wire_{reason}").add(more)
        self._refused_seen = refused

    def close(self) -> None:
        """Stop listening, where this end does."""
        self.stream.close()
