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
from typing import Any

import numpy as np
import ray

from veldt.backends.base import (
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
from veldt.backends.signals import Doorbell
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
    telemetry: dict[str, bytes]
    """By node: the counters of the incarnation before, to go on from."""


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


class NodeHost:
    """A Ray actor. All methods are coroutines, so they run in one thread, the event loop's."""

    async def prepare(self, assignment: Assignment) -> int:
        """Build the channels; returns the process id. Comes before everything else."""
        self._assignment = assignment
        self._stopping = threading.Event()
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
                nodes.append(construct(node, self._context(node.name, node.index), self._open))
            if self._assignment.group.threads:
                run_in_threads(nodes, self._doorbells, self._stopping.is_set)
            else:
                doorbell = self._doorbells[nodes[0].name]
                run_until_stopped(nodes, doorbell, self._stopping.is_set)
        except NodeFailure as failure:
            return failure.node, failure.cause, failure.trace
        finally:
            close_all(nodes)
        return None

    def _context(self, name: str, index: int) -> NodeContext:
        assignment, telemetry = self._assignment, self._telemetry[name]
        return NodeContext(name, index, assignment.seed, telemetry, assignment.incarnation)

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

    async def stop(self) -> None:
        """Ask the roles to end; `run` returns when they have."""
        self._stopping.set()
        for intake in self._intakes.values():
            intake.close()
        for doorbell in self._doorbells.values():
            doorbell.ring()


def _use_one_core() -> None:
    # Roles that need torch have it imported by now; the others start sooner without it.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
