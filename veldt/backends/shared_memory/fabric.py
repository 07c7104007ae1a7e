# SPDX-License-Identifier: Apache-2.0
"""The live side of a topology's channels where nodes share memory (serial and process backends)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from veldt.backends.shared_memory.channels import (
    BoardMemory,
    BoardSink,
    BoardSource,
    QueueMemory,
    QueueSink,
    QueueSource,
)
from veldt.backends.shared_memory.memory import Block, PlainBlock, SharedBlock
from veldt.backends.shared_memory.requests import (
    Ledger,
    RequestClient,
    RequestMemory,
    RequestServer,
)
from veldt.backends.shared_memory.signals import Bell, Doorbell, IndexDeque, IndexPipe, Indices
from veldt.backends.shared_memory.streams import Link, LocalLink, link_for, unix_link
from veldt.topology import (
    READING_SIDES,
    UPDATES_SUFFIX,
    WRITING_SIDES,
    Board,
    BoardSpec,
    End,
    Handle,
    Node,
    Queue,
    QueueSpec,
    Requests,
    RequestsSpec,
    Shared,
    Stream,
    StreamSpec,
    Topology,
)
from veldt.types import Parameters


@dataclass
class Fabric:
    """Memory and doorbells of the channels; it travels to every process that uses them."""

    queues: dict[str, QueueMemory] = field(default_factory=dict)
    boards: dict[str, BoardMemory] = field(default_factory=dict)
    shared: dict[str, Block] = field(default_factory=dict)
    requests: dict[str, RequestMemory] = field(default_factory=dict)
    streams: dict[str, Link] = field(default_factory=dict)
    doorbells: dict[str, Doorbell] = field(default_factory=dict)
    """By node name. Empty on the serial backend, where nobody sleeps."""
    readers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    writers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By channel name: the nodes at either end, to know whom to wake."""
    remote_readers: dict[str, Bell] = field(default_factory=dict)
    """By board name: what brings its versions to readers without a share in this memory."""

    def add_ends_of(self, nodes: Iterable[Node]) -> None:
        """Note which channels `nodes` read and write."""
        for node in nodes:
            for _, end in node.ends():
                if end.side in WRITING_SIDES:
                    self.writers[end.channel.name].append(node.name)
                if end.side in READING_SIDES:
                    self.readers[end.channel.name].append(node.name)

    def open(self, node: Node, end: End, holder: int) -> Any:
        """The live port of `end` for `node`."""
        channel = end.channel
        if isinstance(channel, QueueSpec):
            memory = self.queues[channel.name]
            if end.side == "sink":
                return QueueSink(memory, holder, self._bells(self.readers, channel.name, node))
            producers = self._bells(self.writers, channel.name, node)
            return QueueSource(memory, holder, producers, end.slots_per_batch)
        if isinstance(channel, BoardSpec):
            board = self.boards[channel.name]
            if end.side == "sink":
                bells: list[Bell] = [*self._bells(self.readers, channel.name, node)]
                if channel.name in self.remote_readers:
                    bells.append(self.remote_readers[channel.name])
                return BoardSink(board, bells)
            return BoardSource(board, end.extra_lag_updates)
        if isinstance(channel, RequestsSpec):
            return self._open_requests(node, end, channel, holder)
        if isinstance(channel, StreamSpec):
            return self._open_stream(node, end, self.streams[channel.name])
        return self.shared[channel.name].array(channel.dtype, channel.size)

    def _open_requests(
        self, node: Node, end: End, channel: RequestsSpec, holder: int
    ) -> RequestClient | RequestServer:
        memory = self.requests[channel.name]
        if end.side == "client":
            servers = self._bells(self.readers, channel.name, node)
            return RequestClient(memory, end.client, servers)
        clients = enumerate(self.writers[channel.name])
        bells = {i: self.doorbells[name] for i, name in clients if name in self.doorbells}
        return RequestServer(memory, bells, holder)

    def _open_stream(self, node: Node, end: End, link: Link) -> Any:
        port = link.client(end.client) if end.side == "client" else link.server()
        if not isinstance(link, LocalLink):
            self.doorbells[node.name].watch(port.fileno())
        return port

    def _bells(self, side: dict[str, list[str]], channel: str, node: Node) -> Iterable[Doorbell]:
        # Nodes that take turns in one process share a doorbell and need not ring their own.
        own = self.doorbells.get(node.name)
        bells = [self.doorbells[name] for name in side[channel] if name in self.doorbells]
        return list(dict.fromkeys(bell for bell in bells if bell is not own))

    def part_for(self, nodes: list[Node]) -> Fabric:
        """What the process that runs `nodes` needs, and nothing else."""
        names = {name for node in nodes for name in _channel_names(node)}
        part = Fabric(
            queues={name: memory for name, memory in self.queues.items() if name in names},
            boards={name: memory for name, memory in self.boards.items() if name in names},
            shared={name: block for name, block in self.shared.items() if name in names},
            requests={
                name: memory.part_for(_clients(nodes, name))
                for name, memory in self.requests.items()
                if name in names
            },
            streams={name: link for name, link in self.streams.items() if name in names},
            readers={name: self.readers[name] for name in names},
            writers={name: self.writers[name] for name in names},
        )
        peers = {peer for node in nodes for _, end in node.ends() for peer in self._woken(end)}
        peers |= {node.name for node in nodes}
        part.doorbells = {peer: self.doorbells[peer] for peer in peers if peer in self.doorbells}
        return part

    def _woken(self, end: End) -> list[str]:
        """The nodes that whoever has `end` wakes: those at the other one."""
        if end.side == "both" or (isinstance(end.channel, BoardSpec) and end.side == "source"):
            return []
        others = self.readers if end.side in WRITING_SIDES else self.writers
        return others[end.channel.name]

    def close(self) -> None:
        """Give up every descriptor; memory goes with its last view."""
        for doorbell in set(self.doorbells.values()):
            doorbell.close()
        self.doorbells = {}
        for block in self.shared.values():
            block.close()
        for board in self.boards.values():
            board.block.close()
        for channels in (self.queues, self.requests, self.streams):
            for channel in channels.values():
                channel.close()


def build_fabric(topology: Topology, between_processes: bool, verify: bool) -> Fabric:
    """Allocate every channel of `topology` once."""
    fabric = Fabric()
    fabric.add_ends_of(topology.nodes)
    for channel in topology.channels():
        name = channel.spec.name
        crosses = between_processes and not _within_one_group(topology, channel)
        if isinstance(channel, Queue):
            fabric.queues[name] = _queue_memory(channel.spec, crosses, verify)
        elif isinstance(channel, Board):
            fabric.boards[name] = board_memory(channel, between_processes)
        elif isinstance(channel, Requests):
            queue = fabric.queues[channel.spec.queue.name]
            fabric.requests[name] = request_memory(channel.spec, queue, crosses)
        elif isinstance(channel, Stream):
            fabric.streams[name] = link_for(channel.spec, unix_link if crosses else None)
        else:
            fabric.shared[name] = shared_block(channel, between_processes)
    return fabric


def bytes_of(topology: Topology) -> int:
    """What the channels hold, and the batches that their slots are joined into."""
    queues = sum(QueueMemory.nbytes(queue.spec) for queue in topology.queues)
    boards = sum(BoardMemory.nbytes(board.spec) for board in topology.boards)
    shared = sum(memory.initial.nbytes for memory in topology.shared)
    joined = sum(
        end.channel.layout.nbytes * end.slots_per_batch
        for node in topology.nodes
        for _, end in node.ends()
        if isinstance(end.channel, QueueSpec) and end.slots_per_batch > 1
    )
    return queues + boards + shared + joined


def descriptors_of(topology: Topology) -> int:
    """About how many file descriptors a supervisor opens for channels, telemetry and processes."""
    per_channel = 5 * len(topology.queues) + len(topology.boards) + len(topology.shared)
    per_request = sum(2 * requests.spec.num_clients + 3 for requests in topology.requests)
    return 48 + per_channel + per_request + 2 * len(topology.nodes) + 5 * len(topology.groups())


def _channel_names(node: Node) -> Iterator[str]:
    """The channels whose memory a node touches; whoever answers about a queue's rows sees them."""
    for _, end in node.ends():
        yield end.channel.name
        if isinstance(end.channel, RequestsSpec):
            yield end.channel.queue.name


def _clients(nodes: list[Node], channel: str) -> set[int] | None:
    """Those of a channel of requests that `nodes` are; None for a server, which answers all."""
    ends = [end for node in nodes for _, end in node.ends() if end.channel.name == channel]
    return None if any(end.side == "server" for end in ends) else {end.client for end in ends}


def _within_one_group(topology: Topology, channel: Handle) -> bool:
    name = channel.spec.name
    users = [
        group
        for group in topology.groups()
        if any(name in _channel_names(node) for node in group.nodes)
    ]
    return len(users) <= 1


def request_memory(
    spec: RequestsSpec, queue: QueueMemory, between_processes: bool
) -> RequestMemory:
    kind: type[Indices] = IndexPipe if between_processes else IndexDeque
    num_slots = queue.spec.num_slots
    block = _block(Ledger.nbytes(num_slots), f"{spec.name}-ledger", between_processes)
    answered = {client: kind() for client in range(spec.num_clients)}
    return RequestMemory(queue, kind(), answered, Ledger(block, num_slots))


def _block(nbytes: int, name: str, between_processes: bool) -> Block:
    return SharedBlock(nbytes, name) if between_processes else PlainBlock(nbytes, name)


def _queue_memory(spec: QueueSpec, between_processes: bool, verify: bool) -> QueueMemory:
    block = _block(QueueMemory.nbytes(spec), spec.name, between_processes)
    kind: type[Indices] = IndexPipe if between_processes else IndexDeque
    memory = QueueMemory(spec, block, free=kind(), full=kind(), verify=verify)
    for index in range(spec.num_slots):
        memory.free.push(index)
    return memory


def board_memory(board: Board, between_processes: bool) -> BoardMemory:
    nbytes = BoardMemory.nbytes(board.spec)
    memory = BoardMemory(board.spec, _block(nbytes, board.spec.name, between_processes))
    memory.publish(Parameters(board.initial, board.version))
    return memory


def shared_block(shared: Shared, between_processes: bool) -> Block:
    block = _block(shared.initial.nbytes, shared.spec.name, between_processes)
    block.array(shared.spec.dtype, shared.spec.size)[:] = shared.initial
    return block


class OverFabric:
    """What a run asks about channels that all lie in one fabric here."""

    _fabric: Fabric
    _topology: Topology

    def parameters(self, board: str) -> Parameters:
        return newest_parameters(self._fabric, self._topology.shared, board)

    def publish(self, board: str, parameters: Parameters) -> None:
        self._fabric.boards[board].publish(parameters)

    def queue_fills(self) -> dict[str, float]:
        return {name: queue.fill() for name, queue in self._fabric.queues.items()}


def newest_parameters(fabric: Fabric, shared_memory: Iterable[Shared], name: str) -> Parameters:
    """A copy of the newest weights on the board of this name, or of lock-free shared weights. Their
    version is the sum of the counts beside them; the copy may mix updates that are under way."""
    if name in fabric.boards:
        return fabric.boards[name].newest()
    arrays = {
        shared.spec.name: fabric.shared[shared.spec.name].array(shared.spec.dtype, shared.spec.size)
        for shared in shared_memory
        if shared.spec.name in (name, name + UPDATES_SUFFIX)
    }
    return Parameters(arrays[name].copy(), int(arrays[name + UPDATES_SUFFIX].sum()))
