# SPDX-License-Identifier: Apache-2.0
"""All channels of a topology as live objects, where nodes share memory."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Protocol, TypeVar

from veldt.backends.shared_memory.channels import (
    BoardMemory,
    BoardSink,
    BoardSource,
    QueueMemory,
    QueueSink,
    QueueSource,
    RequestClient,
    RequestMemory,
    RequestServer,
)
from veldt.backends.shared_memory.memory import (
    Block,
    IndexDeque,
    IndexPipe,
    Indices,
    Wakeable,
    Waker,
)
from veldt.process_groups import temporary_folder
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
    Stream,
    StreamSpec,
    Topology,
)
from veldt.types import Parameters
from veldt.wire.protocol import LocalClient, StreamFormat, StreamServicer
from veldt.wire.security import Security, from_environment

T = TypeVar("T")


class Link(Protocol):
    """Makes the ports of one stream."""

    def client(self, index: int) -> Any: ...

    def server(self) -> Any: ...

    def close(self) -> None: ...


class LocalLink:
    """A stream whose ends are nodes of one thread."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        format = StreamFormat(spec.request, spec.reply)
        self._servicer = StreamServicer(format, spec.num_clients, spec.groups_per_client)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalLink, (self._spec,)

    def client(self, index: int) -> LocalClient:
        return LocalClient(self._servicer.format, index, self._servicer)

    def server(self) -> StreamServicer:
        return self._servicer

    def close(self) -> None: ...


@dataclass
class SocketLink:
    """A stream over gRPC, here over a Unix socket in a directory that only this user can read."""

    spec: StreamSpec
    security: Security = field(default_factory=Security)
    """With a token of its own, which both ends know."""
    address: str = ""

    def find_address(self) -> str | None:
        """Where the server listens; None: not known yet."""
        return self.address or None

    def client(self, index: int) -> Any:
        from veldt.wire.transport import StreamClient  # imports gRPC

        format = StreamFormat(self.spec.request, self.spec.reply)
        return StreamClient(format, index, self.find_address, self.security.for_clients())

    def server(self) -> Any:
        return self.listen(self.address)

    def listen(self, address: str) -> Any:
        """The server, at this address."""
        from veldt.wire.transport import RpcServer

        format = StreamFormat(self.spec.request, self.spec.reply)
        servicer = StreamServicer(format, self.spec.num_clients, self.spec.groups_per_client)
        return RpcServer(servicer, address, self.security)

    def close(self) -> None:
        shutil.rmtree(Path(self.address.removeprefix("unix:")).parent, ignore_errors=True)


@dataclass(frozen=True)
class ExternalLink:
    """A stream whose clients are external simulators; the server's node listens for them."""

    spec: StreamSpec
    security: Security

    def client(self, index: int) -> Any:
        raise AssertionError("external simulators are the clients")

    def server(self) -> Any:
        from veldt.wire.external import ExternalFormat, ExternalServicer
        from veldt.wire.transport import RpcServer

        endpoint = self.spec.external
        assert endpoint is not None
        format = ExternalFormat(endpoint.interface, learns=True, takes_masks=endpoint.takes_masks)
        width = self.spec.request["first"].shape[0]
        num_places = self.spec.num_clients * self.spec.groups_per_client
        return RpcServer(
            ExternalServicer(format, num_places, width), endpoint.address, self.security
        )

    def close(self) -> None: ...


def link_for(spec: StreamSpec, crosses: Callable[[StreamSpec], Link] | None) -> Link:
    """What carries a stream; `crosses` makes it if the ends are in different processes."""
    if spec.external is not None:
        return ExternalLink(spec, from_environment(spec.external.address))
    return LocalLink(spec) if crosses is None else crosses(spec)


def unix_link(spec: StreamSpec) -> SocketLink:
    directory = tempfile.mkdtemp(prefix="s-", dir=temporary_folder())
    return SocketLink(spec, address=f"unix:{directory}/socket")


@dataclass
class Fabric:
    """Memory and wakers of the channels; each process that uses them receives its part."""

    queues: dict[str, QueueMemory] = field(default_factory=dict)
    boards: dict[str, BoardMemory] = field(default_factory=dict)
    shared: dict[str, Block] = field(default_factory=dict)
    requests: dict[str, RequestMemory] = field(default_factory=dict)
    streams: dict[str, Link] = field(default_factory=dict)
    wakers: dict[str, Waker] = field(default_factory=dict)
    """By node name. Empty on the serial backend, where no node sleeps."""
    readers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    writers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By channel name: the nodes at either end, which are woken by the other one."""
    remote_readers: dict[str, Wakeable] = field(default_factory=dict)
    """By board name: what sends its versions to processes that do not share this memory."""

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
                return QueueSink(memory, holder, self._wakers(self.readers, channel.name, node))
            producers = self._wakers(self.writers, channel.name, node)
            return QueueSource(memory, holder, producers, end.slots_per_batch)
        if isinstance(channel, BoardSpec):
            board = self.boards[channel.name]
            if end.side == "sink":
                wakers: list[Wakeable] = [*self._wakers(self.readers, channel.name, node)]
                if channel.name in self.remote_readers:
                    wakers.append(self.remote_readers[channel.name])
                return BoardSink(board, wakers)
            return BoardSource(board, end.extra_lag_updates)
        if isinstance(channel, RequestsSpec):
            requests = self.requests[channel.name]
            if end.side == "client":
                servers = self._wakers(self.readers, channel.name, node)
                return RequestClient(requests, end.client, servers)
            clients = enumerate(self.writers[channel.name])
            asking = {i: self.wakers[name] for i, name in clients if name in self.wakers}
            return RequestServer(requests, asking, holder)
        if isinstance(channel, StreamSpec):
            link = self.streams[channel.name]
            port = link.client(end.client) if end.side == "client" else link.server()
            if not isinstance(link, LocalLink):
                self.wakers[node.name].watch(port.fileno())
            return port
        return self.shared[channel.name].array(channel.dtype, channel.size)

    def _wakers(self, side: dict[str, list[str]], channel: str, node: Node) -> Iterable[Waker]:
        # Nodes that are stepped by one thread share a waker and need not use it.
        own = self.wakers.get(node.name)
        wakers = [self.wakers[name] for name in side[channel] if name in self.wakers]
        return dict.fromkeys(waker for waker in wakers if waker is not own)

    def part_for(self, nodes: list[Node]) -> Fabric:
        """What the process that runs `nodes` needs."""
        names = {name for node in nodes for name in _channel_names(node)}
        peers = {peer for node in nodes for _, end in node.ends() for peer in self._woken(end)}
        return Fabric(
            queues=_only(names, self.queues),
            boards=_only(names, self.boards),
            shared=_only(names, self.shared),
            requests={
                name: memory.part_for(_clients(nodes, name))
                for name, memory in _only(names, self.requests).items()
            },
            streams=_only(names, self.streams),
            wakers=_only(peers | {node.name for node in nodes}, self.wakers),
            readers={name: self.readers[name] for name in names},
            writers={name: self.writers[name] for name in names},
        )

    def _woken(self, end: End) -> list[str]:
        """The nodes that the user of `end` wakes: those at the other end."""
        if end.side == "both" or (isinstance(end.channel, BoardSpec) and end.side == "source"):
            return []
        others = self.readers if end.side in WRITING_SIDES else self.writers
        return others[end.channel.name]

    def close(self) -> None:
        """Close every descriptor; memory is freed with its last view."""
        for waker in set(self.wakers.values()):
            waker.close()
        self.wakers = {}
        for channels in (self.shared, self.boards, self.queues, self.requests, self.streams):
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
            answered = {client: _indices(crosses) for client in range(channel.spec.num_clients)}
            memory = Block(RequestMemory.nbytes(queue.spec), name, crosses)
            fabric.requests[name] = RequestMemory(queue, memory, _indices(crosses), answered)
        elif isinstance(channel, Stream):
            fabric.streams[name] = link_for(channel.spec, unix_link if crosses else None)
        else:
            memory = Block(channel.initial.nbytes, name, between_processes)
            memory.array(channel.spec.dtype, channel.spec.size)[:] = channel.initial
            fabric.shared[name] = memory
    return fabric


def bytes_of(topology: Topology) -> int:
    """Memory of the channels and of the batches that their slots are joined into."""
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
    return 48 + per_channel + per_request + 2 * len(topology.nodes) + 6 * len(topology.groups())


def _only(names: set[str], entries: Mapping[str, T]) -> dict[str, T]:
    return {name: entry for name, entry in entries.items() if name in names}


def _channel_names(node: Node) -> Iterator[str]:
    """The channels whose memory a node uses, including the queues that its requests are about."""
    for _, end in node.ends():
        yield end.channel.name
        if isinstance(end.channel, RequestsSpec):
            yield end.channel.queue.name


def _clients(nodes: list[Node], channel: str) -> set[int] | None:
    """Which clients of a channel of requests `nodes` are; None for a server, which answers all."""
    ends = [end for node in nodes for _, end in node.ends() if end.channel.name == channel]
    return None if any(end.side == "server" for end in ends) else {end.client for end in ends}


def _within_one_group(topology: Topology, channel: Handle) -> bool:
    users = {node.name for node in topology.nodes if channel.spec.name in _channel_names(node)}
    return any(users <= {node.name for node in group.nodes} for group in topology.groups())


def _indices(between_processes: bool) -> Indices:
    return IndexPipe() if between_processes else IndexDeque()


def _queue_memory(spec: QueueSpec, between_processes: bool, verify: bool) -> QueueMemory:
    slots = Block(QueueMemory.nbytes(spec), spec.name, between_processes)
    free, full = _indices(between_processes), _indices(between_processes)
    for index in range(spec.num_slots):
        free.push(index)
    return QueueMemory(spec, slots, free, full, verify)


def board_memory(board: Board, between_processes: bool) -> BoardMemory:
    nbytes = BoardMemory.nbytes(board.spec)
    memory = BoardMemory(board.spec, Block(nbytes, board.spec.name, between_processes))
    memory.publish(Parameters(board.initial, board.version))
    return memory


@dataclass(frozen=True)
class SentFabric:
    """A pickled fabric with more descriptors than one message carries; can be opened once.

    The receiver fetches the descriptors one by one from a Unix socket of the sender."""

    key: bytes
    content: bytes

    @staticmethod
    def of(fabric: Fabric) -> SentFabric:
        return SentFabric(bytes(current_process().authkey), bytes(ForkingPickler.dumps(fabric)))

    def open(self) -> Fabric:
        current_process().authkey = self.key
        fabric: Fabric = ForkingPickler.loads(self.content)
        return fabric


class OverFabric:
    """The part of a backend's interface that one fabric with all channels can answer."""

    _fabric: Fabric
    _topology: Topology

    def parameters(self, board: str) -> Parameters:
        """A copy of the newest weights on `board`, or of lock-free shared weights of that name.

        The version of the latter is the sum of their counts, and the copy may contain part of an
        update."""
        if board in self._fabric.boards:
            return self._fabric.boards[board].newest()
        specs = {shared.spec.name: shared.spec for shared in self._topology.shared}
        weights, updates = (
            self._fabric.shared[name].array(specs[name].dtype, specs[name].size)
            for name in (board, board + UPDATES_SUFFIX)
        )
        return Parameters(weights.copy(), int(updates.sum()))

    def queue_fills(self) -> dict[str, float]:
        return {name: queue.fill() for name, queue in self._fabric.queues.items()}
