# SPDX-License-Identifier: Apache-2.0
"""SEED's server: answers the rows that actors stream in, and keeps them as trajectories.

Actors hold no weights and store nothing. Recurrent state, last action and unfinished trajectories
of every environment are kept here. Row T of a trajectory is row 0 of the next. What an actor had
begun before its connection broke is dropped whole: nothing is delivered twice, and no trajectory
contains rows of two connections.

`ExternalInference` serves simulators in other processes, which drive the loop: there are no actors,
so it clips rewards and counts episodes and env steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from veldt.context import NodeContext
from veldt.environments.lookup import ExternalEndpoint
from veldt.ports import ExperienceSink, ReceivedRow, StreamServer
from veldt.roles.actor import Actor
from veldt.roles.inference import BatchedInference, BatchedPolicy, BatchRule
from veldt.roles.policies import ENV_ACTION
from veldt.topology import Stream, Topology
from veldt.types import (
    DISCOUNTED_RETURN,
    LAST_ACTION,
    LAST_REWARD,
    Layout,
    Slot,
    is_answer_of_environment,
    slots_over,
)

_Placed = tuple[ReceivedRow, Slot, int]


@dataclass
class _Track:
    """The present trajectory of one group of environments."""

    number: int
    connection: int = -1
    incarnation: int = 0
    sequence: int = 0
    slot: Slot | None = None
    row: int = 0
    past: dict[str, np.ndarray] = field(default_factory=dict)
    """Last action and reward, for networks that take them as inputs."""


class TrajectoryAssembler:
    """Writes received rows into slots of `sink`, one slot per group at a time."""

    def __init__(self, sink: ExperienceSink, num_groups: int) -> None:
        self._sink = sink
        self._tracks = [_Track(number) for number in range(num_groups)]
        self.dropped = 0
        """Trajectories that ended unfinished with a broken connection."""

    def is_new_connection(self, number: int, row: ReceivedRow) -> bool:
        return row.connection != self._tracks[number].connection

    def begin(self, number: int, row: ReceivedRow) -> None:
        """Discard the group's unfinished trajectory; its slot is used again."""
        track = self._tracks[number]
        self.dropped += track.slot is not None and track.connection >= 0
        track.connection, track.incarnation = row.connection, row.incarnation
        track.sequence += 1  # a gap: the next trajectory does not continue the last one
        track.row = -1
        for array in track.past.values():
            array[:] = 0

    def receive(self, number: int, row: ReceivedRow) -> None:
        """Write the step that followed the last row, and hand over the trajectory if it is
        complete."""
        track, arrays = self._tracks[number], row.arrays
        if track.slot is not None and track.row >= 0:
            for name, array in arrays.items():
                if is_answer_of_environment(name):
                    track.slot[name][track.row] = array
            if track.past:
                track.past[LAST_ACTION][:] = track.slot["action"][track.row]
                track.past[LAST_REWARD][:] = arrays["reward"]
        track.row += 1
        if track.slot is not None and track.row == len(track.slot["first"]) - 1:
            self._write_row(track, arrays)
            self._hand_over(track)

    def _hand_over(self, track: _Track) -> None:
        assert track.slot is not None
        self._sink.commit(track.slot)
        track.slot, track.row = None, 0
        track.sequence += 1

    def end(self, number: int, last: ReceivedRow | None = None) -> None:
        """Hand over the complete rows of a group whose client has left.

        Episodes that have not ended are truncated, and the remaining rows are ignored. `last` has
        the observation that followed, if it is not written yet."""
        track = self._tracks[number]
        slot, row, track.connection = track.slot, track.row, -1
        if slot is None or row < 1:
            return
        if last is not None:
            self._write_row(track, last.arrays)
        before = row - 1
        unfinished = ~(slot["terminated"][before] | slot["truncated"][before])
        for name in slot.arrays:
            if name.startswith("final_"):
                seen = slot[name.removeprefix("final_")][row]
                slot[name][before, unfinished] = seen[unfinished]
        slot["truncated"][before] |= unfinished
        for name, array in slot.arrays.items():
            if len(array) == len(slot["first"]) and not name.startswith("state."):
                array[row:] = array[before]
        for name in ("reward", "terminated", "truncated"):
            slot[name][row:] = 0
        for name in ("first", "ignored"):
            slot[name][row:] = True
        self._hand_over(track)

    def place(self, number: int, row: ReceivedRow) -> tuple[Slot, int] | None:
        """Slot and row that the received row was written into; None while there is no free slot
        because the learner is behind."""
        track = self._tracks[number]
        if track.slot is None:
            track.slot = self._sink.reserve()
            if track.slot is None:
                return None
        if LAST_ACTION in track.slot.arrays and not track.past:
            for name in (LAST_ACTION, LAST_REWARD):
                track.past[name] = np.zeros_like(track.slot[name][0])
        if track.row == 0:
            track.slot.stamp(track.number, track.incarnation, track.sequence)
        self._write_row(track, row.arrays)
        return track.slot, track.row

    @staticmethod
    def _write_row(track: _Track, arrays: dict[str, np.ndarray]) -> None:
        assert track.slot is not None
        for name, array in arrays.items():
            if not is_answer_of_environment(name):
                track.slot[name][track.row] = array
        for name, array in track.past.items():
            track.slot[name][track.row] = array


@dataclass(eq=False)
class StreamInference(BatchedInference[_Placed]):
    """Batches rows of many actors into one forward pass with the newest weights.

    While the learner is behind, rows wait unanswered, which slows the actors down. `answer` is the
    layout of the replies; `rule.most` counts the groups of all actors. When the server dies, actors
    connect to its successor and ask again; trajectories that were not handed over are lost."""

    stream: StreamServer
    policy: BatchedPolicy
    sink: ExperienceSink
    rule: BatchRule
    answer: Layout
    groups_per_client: int = 1

    def open(self, context: NodeContext) -> None:
        self._without_slot: list[ReceivedRow] = []
        num_groups, width = self.rule.most, self.answer[ENV_ACTION].shape[0]
        self._assembler = TrajectoryAssembler(self.sink, num_groups)
        self.policy.open(context, width, num_groups)
        buffer = np.zeros(self.answer.nbytes, np.uint8)
        self._answer_buffer = slots_over(self.answer, buffer, 1)[0]
        super().open(context)
        self._telemetry = telemetry = context.telemetry
        self._assembling = telemetry.stage("assemble")
        self._dropped = telemetry.counter("dropped.broken_connection")
        self._connections = telemetry.counter("wire.connections")
        self._refused_seen: dict[str, int] = {}

    def step(self) -> bool:
        with self._assembling:
            received = self._take()
        self._count_refusals()
        return self._answer_if_due() or received

    def _take(self) -> bool:
        waiting, self._without_slot = self._without_slot, []
        for row in waiting:
            self._place(row)
        received = False
        while not self._is_full and (taken := self.stream.take()) is not None:
            self._receive(taken)
            received = True
        return received

    def _receive(self, row: ReceivedRow) -> None:
        number = self._number(row)
        if self._assembler.is_new_connection(number, row):
            self._forget_requests(number)  # no client waits for these answers any more
            before = self._assembler.dropped
            self._assembler.begin(number, row)
            self.policy.forget(number)
            self._connections.add()
            self._dropped.add(self._assembler.dropped - before)
        self._assembler.receive(number, row)
        self._place(row)

    def _number(self, row: ReceivedRow) -> int:
        """The group's number among those of all actors."""
        return row.client * self.groups_per_client + row.group

    def _forget_requests(self, number: int) -> None:
        self._requests = [each for each in self._requests if self._number(each[0]) != number]
        self._without_slot = [row for row in self._without_slot if self._number(row) != number]

    def _place(self, row: ReceivedRow) -> None:
        place = self._assembler.place(self._number(row), row)
        if place is None:
            self._without_slot.append(row)
        else:
            self._add((row, *place))

    def _answer(self, requests: list[_Placed]) -> None:
        self.policy.refresh()
        rows = [(slot, number) for _, slot, number in requests]
        reply = self.policy.act(rows, [self._number(row) for row, _, _ in requests])
        for position, (row, _, _) in enumerate(requests):
            self._answer_buffer[ENV_ACTION][:] = reply.env_action[self.policy.part(position)]
            row.answer(self._answer_buffer.raw.tobytes())

    def _count_refusals(self) -> None:
        if self.stream.refused == self._refused_seen:
            return
        refused = dict(self.stream.refused)
        for reason, count in refused.items():
            more = count - self._refused_seen.get(reason, 0)
            self._telemetry.counter(f"dropped.wire_{reason}").add(more)
        self._refused_seen = refused

    def close(self) -> None:
        self.stream.close()


CONNECTED = "external.environments"
"""Gauge: environments of connected clients."""


@dataclass(eq=False)
class ExternalInference(StreamInference):
    """Answers clients that connect and disconnect at any time.

    `rule.most` is the number of places; a forward pass begins when half of those that are held have
    asked. `gamma` as in Actor."""

    gamma: float = 0.99
    reward_clip: float | None = None
    scales_rewards: bool = False
    """Whether trajectories have discounted returns, for the learner's reward scale."""

    def open(self, context: NodeContext) -> None:
        super().open(context)
        width = self.policy.part(0).stop
        self._returns = np.zeros((self.rule.most, width))
        self._lengths = np.zeros((self.rule.most, width), np.int64)
        self._discounted = np.zeros((self.rule.most, width), np.float32)
        self._held: set[int] = set()
        telemetry = context.telemetry
        self._env_steps = telemetry.counter("env_steps")
        self._aborted_episodes = telemetry.counter("aborted_episodes")
        self._connected = telemetry.gauge(CONNECTED)
        self._count_held()

    def _count_held(self) -> None:
        self._enough = max(1, len(self._held) // 2)
        self._connected.set(len(self._held) * self._returns.shape[1])

    def _receive(self, row: ReceivedRow) -> None:
        place = row.client
        if row.left:
            self._leave(place)
            return
        if place not in self._held:
            self._held.add(place)
            self._count_held()
        self._read_step(place, row)
        if not row.leaves:
            super()._receive(row)
        elif not self._assembler.is_new_connection(place, row):
            self._assembler.receive(place, row)
            self._assembler.end(place, row)

    def _leave(self, place: int) -> None:
        self._forget_requests(place)
        self._assembler.end(place)
        self._aborted_episodes.add(int((self._lengths[place] > 0).sum()))
        for memory in (self._returns, self._lengths, self._discounted):
            memory[place] = 0
        self._held.discard(place)
        self._count_held()

    def _read_step(self, place: int, row: ReceivedRow) -> None:
        """Count the step and its episodes; clip its reward and add the discounted return."""
        arrays = row.arrays
        ended = arrays["terminated"] | arrays["truncated"]
        if not self._assembler.is_new_connection(place, row):
            self._env_steps.add(self._returns.shape[1])
            self._returns[place] += arrays["reward"]
            self._lengths[place] += 1
            if ended.any():
                returns, lengths = self._returns[place], self._lengths[place]
                self._telemetry.episode(returns[ended], lengths[ended])
                returns[ended] = lengths[ended] = 0
        if self.reward_clip is not None:
            arrays["reward"] = arrays["reward"].clip(-self.reward_clip, self.reward_clip)
        if self.scales_rewards:
            running = self._discounted[place]
            running *= self.gamma
            running += arrays["reward"]
            arrays[DISCOUNTED_RETURN] = running.copy()
            running[ended] = 0.0


def without_actors(
    topology: Topology, endpoint: ExternalEndpoint, reward_clip: float | None
) -> None:
    """Replace the actors of `topology` by external simulators, which connect to `endpoint`."""
    gammas = {node.role.gamma for node in topology.nodes if isinstance(node.role, Actor)}
    topology.nodes = [node for node in topology.nodes if not isinstance(node.role, Actor)]
    [stream], [gamma] = topology.streams, gammas
    stream = Stream(replace(stream.spec, external=endpoint))
    topology.streams = [stream]
    for node in topology.nodes:
        role = node.role
        if isinstance(role, StreamInference):
            node.role = ExternalInference(
                stream.server,
                role.policy,
                role.sink,
                role.rule,
                role.answer,
                gamma=gamma,
                reward_clip=reward_clip,
                scales_rewards=DISCOUNTED_RETURN in stream.spec.request,
            )
