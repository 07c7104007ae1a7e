# SPDX-License-Identifier: Apache-2.0
"""The process of one group of nodes on Ray: its roles, its share of the channels, its counters.

Roles run in threads of their own; the event loop beside them takes deliveries and weights.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from veldt.backends.base import (
    Errand,
    NodeFailure,
    RunningNode,
    close_all,
    construct,
    doorbells_of,
    run_in_threads,
    run_until_stopped,
)
from veldt.backends.fabric import (
    Fabric,
    board_memory,
    newest_parameters,
    request_memory,
    shared_block,
)
from veldt.backends.ray_channels import Broadcast, Handle, Intake, Outbox
from veldt.backends.saving import captured_channels, captured_node, restore_role
from veldt.backends.signals import Doorbell
from veldt.backends.streams import Link
from veldt.context import NodeContext
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import (
    READING_SIDES,
    WRITING_SIDES,
    Board,
    End,
    Group,
    Node,
    QueueSpec,
    RequestsSpec,
    Shared,
)
from veldt.types import Parameters


@dataclass
class Assignment:
    """All a node process is given."""

    group: Group
    seed: int
    incarnation: int
    verify: bool
    inbound: list[QueueSpec]
    """Queues consumed here."""
    outbound: list[QueueSpec]
    """Queues consumed elsewhere, with this group's share of the slots."""
    boards: list[Board]
    shared: list[Shared]
    requests: list[RequestsSpec]
    streams: dict[str, Link]
    telemetry: dict[str, bytes]
    """By node: the counters of the incarnation before, to go on from."""
    answers_for: set[str]
    """Boards and shared memory whose content this group puts into checkpoints."""
    run_dir: Path | None
    parts: dict[str, dict[str, np.ndarray]]
    """By node: the state its role continues from; empty for a fresh start."""


@dataclass
class Peers:
    """Handles of other processes. A later message replaces only what it names."""

    consumers: dict[str, Handle]
    """By queue."""
    readers: dict[str, dict[str, Handle]]
    """By board, then by group."""


@dataclass
class Report:
    """What the driver wants to know now and then."""

    telemetry: dict[str, bytes]
    queue_fills: dict[str, float]


@dataclass
class Captured:
    """What a group puts into a checkpoint."""

    parts: dict[str, Any]
    """By node: a reference to its arrays, which went to the object store between two steps."""
    channels: dict[str, np.ndarray]


class NodeHost:
    """A Ray actor. All methods are coroutines, so they run in one thread, the event loop's."""

    async def prepare(self, assignment: Assignment) -> int:
        """Build the channels; returns the process id. Comes before everything else."""
        self._assignment = assignment
        self._stopping = threading.Event()
        self._captures = Captures([node.name for node in assignment.group.nodes])
        self._doorbells = doorbells_of(assignment.group)
        self._telemetry = {
            node.name: NodeTelemetry(memoryview(bytearray(assignment.telemetry[node.name])))
            for node in assignment.group.nodes
        }
        self._intakes = {s.name: Intake(s, assignment.verify) for s in assignment.inbound}
        self._outboxes = {
            spec.name: Outbox(
                spec, assignment.verify, assignment.group.name, assignment.incarnation
            )
            for spec in assignment.outbound
        }
        self._fabric = self._make_fabric()
        self._broadcasts: dict[str, Broadcast] = {}
        return os.getpid()

    def _make_fabric(self) -> Fabric:
        ends = [(node.name, end) for node in self._assignment.group.nodes for _, end in node.ends()]
        fabric = Fabric(
            boards={b.spec.name: board_memory(b, False) for b in self._assignment.boards},
            shared={s.spec.name: shared_block(s, False) for s in self._assignment.shared},
            requests={s.name: request_memory(s, False) for s in self._assignment.requests},
            streams=self._assignment.streams,
            doorbells=self._doorbells,
        )
        for name in {end.channel.name for _, end in ends}:
            here = [(node, end.side) for node, end in ends if end.channel.name == name]
            fabric.writers[name] = [node for node, side in here if side in WRITING_SIDES]
            fabric.readers[name] = [node for node, side in here if side in READING_SIDES]
        for name, intake in self._intakes.items():
            fabric.queues[name] = intake.memory
            intake.consumers = self._bells(fabric.readers[name])
        for name, outbox in self._outboxes.items():
            fabric.queues[name] = outbox.memory
            outbox.producers = self._bells(fabric.writers[name])
        return fabric

    def _bells(self, nodes: list[str]) -> list[Doorbell]:
        return list(dict.fromkeys(self._doorbells[node] for node in nodes))

    async def connect(self, peers: Peers) -> None:
        """Take the handles of processes that this one sends to, or of their successors."""
        for queue, consumer in peers.consumers.items():
            self._outboxes[queue].connect(consumer)
        for board, readers in peers.readers.items():
            if board not in self._broadcasts:
                self._broadcasts[board] = Broadcast(self._fabric.boards[board])
                self._fabric.elsewhere[board] = [self._broadcasts[board]]
            self._broadcasts[board].connect(readers)

    async def run(self) -> tuple[str, str, str] | None:
        """Run the roles until `stop`. Returns what one raised: its node, the cause, the trace."""
        return await asyncio.get_running_loop().run_in_executor(None, self._run)

    def _run(self) -> tuple[str, str, str] | None:
        _use_one_core()
        nodes: list[RunningNode] = []
        try:
            for node in self._assignment.group.nodes:
                nodes.append(self._construct(node))
            stopped, errand = self._stopping.is_set, self._captures.errand
            if self._assignment.group.threads:
                run_in_threads(nodes, self._doorbells, stopped, errand)
            else:
                run_until_stopped(nodes, self._doorbells[nodes[0].name], stopped, errand())
        except NodeFailure as failure:
            return failure.node, failure.cause, failure.trace
        finally:
            close_all(nodes)
        return None

    def _construct(self, node: Node) -> RunningNode:
        given, telemetry = self._assignment, self._telemetry[node.name]
        context = NodeContext(
            node.name, node.index, given.seed, telemetry, given.incarnation, given.run_dir
        )
        running = construct(node, context, self._open)
        if node.name in given.parts:
            restore_role(running, given.parts[node.name])
        return running

    def _open(self, node: Node, end: End) -> Any:
        return self._fabric.open(node, end, holder=1)

    @ray.method(max_task_retries=-1)
    async def deliver(
        self, queue: str, producer: str, incarnation: int, number: int, payload: np.ndarray
    ) -> None:
        await self._intakes[queue].deliver(producer, incarnation, number, payload)

    @ray.method(max_task_retries=-1)
    async def accept(self, board: str, version: int, vector: np.ndarray) -> None:
        """Weights from the board's writer. This loop is the only one that writes the copy here."""
        memory = self._fabric.boards[board]
        if version > memory.version():
            memory.publish(Parameters(vector, version))
        for doorbell in self._bells(self._fabric.readers[board]):
            doorbell.ring()

    async def parameters(self, board: str) -> Parameters:
        return newest_parameters(self._fabric, self._assignment.shared, board)

    async def report(self) -> Report:
        return Report(
            {name: telemetry.to_bytes() for name, telemetry in self._telemetry.items()},
            {name: intake.memory.fill() for name, intake in self._intakes.items()},
        )

    async def capture(self) -> Captured:
        """The state of roles and channels for a checkpoint, each role's taken between two steps."""
        self._captures.begin()
        self._ring()
        owned = self._assignment.answers_for
        fabric = Fabric(
            boards={name: b for name, b in self._fabric.boards.items() if name in owned},
            shared={name: s for name, s in self._fabric.shared.items() if name in owned},
        )
        return Captured(await self._captures.parts, captured_channels(fabric))

    async def stop(self) -> None:
        """Ask the roles to end; `run` returns when they have."""
        self._stopping.set()
        for intake in self._intakes.values():
            await intake.close()
        self._ring()

    def _ring(self) -> None:
        for doorbell in self._doorbells.values():
            doorbell.ring()


class Captures:
    """Collects the parts of a checkpoint from the threads that run the roles."""

    def __init__(self, nodes: list[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._nodes = set(nodes)
        self._number = 0
        self._collected: dict[str, Any] = {}
        self.parts: asyncio.Future[dict[str, Any]] = self._loop.create_future()

    def begin(self) -> None:
        """Ask for a new set. One that is under way is dropped."""
        self._collected, self.parts = {}, self._loop.create_future()
        self._number += 1

    def errand(self) -> Errand:
        """What a thread calls between its steps."""
        seen = self._number

        def save_if_asked(nodes: list[RunningNode]) -> None:
            nonlocal seen
            if self._number == seen:
                return
            seen = self._number
            parts = {node.name: ray.put(captured_node(node)) for node in nodes}
            self._loop.call_soon_threadsafe(self._add, seen, parts)

        return save_if_asked

    def _add(self, number: int, parts: dict[str, Any]) -> None:
        if number != self._number:
            return
        self._collected |= parts
        if self._nodes <= self._collected.keys() and not self.parts.done():
            self.parts.set_result(self._collected)


def _use_one_core() -> None:
    # Roles that need torch have it imported by now; the others start sooner without it.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
