# SPDX-License-Identifier: Apache-2.0
"""The process of one group of nodes on Ray: its roles, its share of the channels, its counters.

Roles run in threads; the event loop of the process receives records and weights.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from veldt.backends.base import (
    BetweenSteps,
    NodeFailure,
    RunningNode,
    close_all,
    construct,
    run_group,
    wakers_of,
)
from veldt.backends.checkpoint_parts import captured_boards, captured_node
from veldt.backends.ray.channels import Broadcast, ClusterLink, Handle, Intake, Outbox
from veldt.backends.shared_memory.fabric import Fabric, Link, SentFabric, board_memory
from veldt.backends.shared_memory.memory import Waker
from veldt.backends.supervision import silent_seconds
from veldt.context import NodeContext
from veldt.resources import keep_freed_memory
from veldt.telemetry.counters import NodeTelemetry, Spans, span_bytes
from veldt.topology import Board, Group, Node, QueueSpec
from veldt.types import Parameters

ChannelsOf = Callable[[list[RunningNode]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class SharedPart:
    """The channels of a process that shares memory with the others."""

    fabric: SentFabric
    holder: int
    """The number of the process in the holders of slots."""


@dataclass
class Assignment:
    """What a node process needs before it runs."""

    group: Group
    seed: int
    incarnation: int
    verify: bool
    inbound: list[QueueSpec]
    """Queues consumed here."""
    outbound: list[QueueSpec]
    """Queues consumed elsewhere, with this group's share of the slots."""
    boards: list[Board]
    streams: dict[str, Link]
    telemetry: dict[str, bytes]
    """By node: the counters of the incarnation before."""
    timeline_seconds: float
    """Length of the recorded timeline; 0: none."""
    run_dir: Path | None
    memory: SharedPart | None
    """All channels, where the processes share memory; `inbound` to `streams` are then not used."""
    parts: dict[str, dict[str, np.ndarray]]
    """By node: the state its role continues from; empty for a fresh start."""


@dataclass
class Peers:
    """Handles of other processes. A later message replaces only what it names."""

    consumers: dict[str, Handle]
    """By queue."""
    readers: dict[str, dict[str, Handle]]
    """By board, then by group."""
    servers: dict[str, Handle]
    """By stream."""


@dataclass
class Report:
    """What the driver asks for several times a second."""

    telemetry: dict[str, bytes]
    queue_fills: dict[str, float]
    silent_seconds: float


@dataclass
class Captured:
    """What a group puts into a checkpoint."""

    parts: dict[str, Any]
    """By node: a reference to its arrays in the object store."""
    channels: dict[str, np.ndarray]


class NodeHost:
    """A Ray actor, whose methods are coroutines and so run in one thread, the event loop's.

    Ray repeats a call whose answer was lost, so each may be made twice."""

    _is_prepared = False
    _ended: asyncio.Future[tuple[str, str, str] | None] | None = None

    async def prepare(self, assignment: Assignment) -> int:
        """Build the channels; returns the process id. Called before all methods below."""
        if self._is_prepared:
            return os.getpid()
        self._is_prepared = True
        self._assignment = assignment
        self._started = time.monotonic()
        self._stopping = threading.Event()
        names = {node.name for node in assignment.group.nodes}
        self._captures = Captures(names, self._channels_of)
        spans = bytes(span_bytes(assignment.timeline_seconds))
        self._telemetry = {
            node.name: NodeTelemetry(memoryview(bytearray(assignment.telemetry[node.name] + spans)))
            for node in assignment.group.nodes
        }
        self._intakes: dict[str, Intake] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._broadcasts: dict[str, Broadcast] = {}
        memory = assignment.memory
        self._holder = 1 if memory is None else memory.holder
        self._fabric = self._make_fabric() if memory is None else memory.fabric.open()
        self._wakers = {name: self._fabric.wakers[name] for name in names}
        return os.getpid()

    def _make_fabric(self) -> Fabric:
        """Channels in this process's memory, connected to those of other processes."""
        given = self._assignment
        self._wakers = wakers_of(given.group)
        self._intakes = {s.name: Intake(s, given.verify) for s in given.inbound}
        self._outboxes = {
            spec.name: Outbox(spec, given.verify, given.group.name, given.incarnation)
            for spec in given.outbound
        }
        fabric = Fabric(
            boards={b.spec.name: board_memory(b, False) for b in given.boards},
            streams=given.streams,
            wakers=self._wakers,
        )
        fabric.add_ends_of(given.group.nodes)
        for name, intake in self._intakes.items():
            fabric.queues[name] = intake.memory
            intake.consumers = self._wakers_of(fabric.readers[name])
        for name, outbox in self._outboxes.items():
            fabric.queues[name] = outbox.memory
            outbox.producers = self._wakers_of(fabric.writers[name])
        return fabric

    def _wakers_of(self, nodes: list[str]) -> list[Waker]:
        return list(dict.fromkeys(self._wakers[node] for node in nodes))

    async def connect(self, peers: Peers) -> None:
        """Use the handles of processes that this one sends to, or of their successors. With shared
        memory none are needed."""
        if self._assignment.memory is not None:
            return
        for queue, consumer in peers.consumers.items():
            self._outboxes[queue].connect(consumer)
        for board, readers in peers.readers.items():
            if board not in self._broadcasts:
                self._broadcasts[board] = Broadcast(self._fabric.boards[board])
                self._fabric.remote_readers[board] = self._broadcasts[board]
            self._broadcasts[board].connect(readers)
        for stream, server in peers.servers.items():
            link = self._assignment.streams[stream]
            assert isinstance(link, ClusterLink)
            link.server_process = server

    async def stream_address(self, stream: str) -> str:
        """Where the server of `stream`, which is in this process, listens; empty: not yet."""
        link = self._assignment.streams[stream]
        assert isinstance(link, ClusterLink)
        return link.address

    async def run(self, peers: Peers, newest: dict[str, Parameters]) -> tuple[str, str, str] | None:
        """Run the roles until `stop`, with `newest` weights by board. Returns the failure of a
        role: its node, the cause, the trace."""
        if self._ended is None:
            await self.connect(peers)
            for board, parameters in newest.items():
                await self.accept(board, parameters.version, parameters.vector)
            self._ended = asyncio.get_running_loop().run_in_executor(None, self._run)
        return await asyncio.shield(self._ended)

    def _run(self) -> tuple[str, str, str] | None:
        _use_one_core()
        keep_freed_memory()
        os.nice(min(node.role.niceness for node in self._assignment.group.nodes))
        self._started = time.monotonic()
        nodes: list[RunningNode] = []
        try:
            for node in self._assignment.group.nodes:
                nodes.append(self._construct(node))
            stopped, saver = self._stopping.is_set, self._captures.saver
            run_group(self._assignment.group, nodes, self._wakers, stopped, saver)
        except NodeFailure as failure:
            return failure.node, failure.cause, failure.trace
        finally:
            close_all(nodes)
        return None

    def _construct(self, node: Node) -> RunningNode:
        given, telemetry = self._assignment, self._telemetry[node.name]
        context = NodeContext(
            node.name,
            node.index,
            given.seed,
            telemetry,
            given.incarnation,
            given.run_dir,
            wake=self._wakers[node.name].wake,
        )
        open_end = partial(self._fabric.open, holder=self._holder)
        return construct(node, context, open_end, given.parts.get(node.name))

    async def deliver(
        self, queue: str, producer: str, incarnation: int, number: int, payload: np.ndarray
    ) -> None:
        await self._intakes[queue].deliver(producer, incarnation, number, payload)

    async def accept(self, board: str, version: int, vector: np.ndarray) -> None:
        """Receive weights from the board's writer."""
        memory = self._fabric.boards[board]
        if version > memory.version():
            memory.publish(Parameters(vector, version))
        for waker in self._wakers_of(self._fabric.readers[board]):
            waker.wake()

    async def parameters(self, board: str) -> Parameters:
        return self._fabric.boards[board].newest()

    async def report(self) -> Report:
        return Report(
            {name: telemetry.to_bytes() for name, telemetry in self._telemetry.items()},
            {name: intake.memory.fill() for name, intake in self._intakes.items()},
            silent_seconds([t.snapshot() for t in self._telemetry.values()], self._started),
        )

    async def take_spans(self) -> dict[str, Spans]:
        return {name: telemetry.take_spans() for name, telemetry in self._telemetry.items()}

    async def stack(self) -> str:
        """The stack of each thread, for the message about a process that hangs."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"{names.get(ident, 'thread')}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        )

    async def capture(self) -> Captured:
        """The state of roles and channels for a checkpoint, each role's between two steps."""
        self._captures.begin()
        self._wake_all()
        return await self._captures.captured

    def _channels_of(self, nodes: list[RunningNode]) -> dict[str, np.ndarray]:
        """The boards that `nodes` write."""
        names, fabric = {node.name for node in nodes}, self._fabric
        own = (board for board in fabric.boards if names & set(fabric.writers[board]))
        return captured_boards({board: fabric.boards[board].newest() for board in own})

    async def stop(self) -> None:
        """Ask the roles to end; `run` returns when they have."""
        self._stopping.set()
        for intake in self._intakes.values():
            await intake.close()
        self._wake_all()

    def _wake_all(self) -> None:
        for waker in self._wakers.values():
            waker.wake()


class Captures:
    """Collects the parts of a checkpoint from the threads that run the roles.

    Between two steps a role and the channels it writes are of the same version."""

    def __init__(self, nodes: set[str], channels_of: ChannelsOf) -> None:
        self._loop = asyncio.get_running_loop()
        self._nodes, self._channels_of = nodes, channels_of
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Ask for a new set of parts. An unfinished one is dropped."""
        self._collected = Captured({}, {})
        self.captured: asyncio.Future[Captured] = self._loop.create_future()
        self._number += 1

    def saver(self) -> BetweenSteps:
        """The function that a thread calls between its steps."""
        seen = 1  # the number after __init__; a new process may already have been asked again

        def save_if_asked(nodes: list[RunningNode]) -> None:
            nonlocal seen
            if self._number == seen:
                return
            seen = self._number
            parts = {node.name: ray.put(captured_node(node)) for node in nodes}
            own = Captured(parts, self._channels_of(nodes))
            self._loop.call_soon_threadsafe(self._add, seen, own)

        return save_if_asked

    def _add(self, number: int, own: Captured) -> None:
        if number != self._number:
            return
        self._collected.parts |= own.parts
        self._collected.channels |= own.channels
        if self._nodes <= self._collected.parts.keys() and not self.captured.done():
            self.captured.set_result(self._collected)


def _use_one_core() -> None:
    # Roles that need torch have imported it by now; the others start faster without it.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
