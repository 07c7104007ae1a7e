# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom, as a value.

An architecture builds a Topology: channels (queues of slots, boards of weights) and nodes (roles
with their arguments). Passing a channel's end to a node is the edge. A backend decides where nodes
run and replaces each end by a live port; the topology never knows which backend that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from veldt.types import Layout


@dataclass(frozen=True)
class QueueSpec:
    """A bounded FIFO of `num_slots` preallocated slots: many producers, one consumer."""

    name: str
    layout: Layout
    num_slots: int


@dataclass(frozen=True)
class BoardSpec:
    """The newest weights of one network: one writer, many readers, the latest wins."""

    name: str
    size: int
    history: int
    """How many versions stay readable; more than two only where actors lag on purpose."""


@dataclass(frozen=True)
class SharedSpec:
    """Memory that several nodes read and write without locks (Hogwild)."""

    name: str
    size: int
    dtype: str


UPDATES_SUFFIX = ".updates"  # beside shared weights, under their name: counts of updates, int64


@dataclass(frozen=True)
class RequestsSpec:
    """Questions of actors to inference servers about rows of the slots of `queue`.

    Over shared memory a message is the number of a row: the server reads the observation where the
    actor wrote it and writes the action beside it. Elsewhere the row goes there and back."""

    name: str
    queue: QueueSpec
    num_clients: int


@dataclass(frozen=True)
class StreamSpec:
    """Messages of fixed layouts between clients and one server that may be on other machines: one
    `request` per group of a client at a time, answered by one `reply`."""

    name: str
    request: Layout
    reply: Layout
    num_clients: int
    groups_per_client: int


Channel = QueueSpec | BoardSpec | SharedSpec | RequestsSpec | StreamSpec


WRITING_SIDES = ("sink", "both", "client")
READING_SIDES = ("source", "both", "server")


@dataclass(frozen=True)
class End:
    """One end of a channel, given to a node as an argument. `options` shape the port."""

    channel: Channel
    side: str
    """ "sink": the node writes. "source": the node reads. "both": shared memory. "client" asks and
    "server" answers requests."""
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Queue:
    """Handle of a queue."""

    spec: QueueSpec

    @property
    def sink(self) -> End:
        return End(self.spec, "sink")

    def source(self, slots_per_batch: int = 1) -> End:
        """Takes `slots_per_batch` slots at a time, joined along the environment axis."""
        if slots_per_batch > self.spec.num_slots:
            raise ValueError(
                f"a batch takes {slots_per_batch} trajectories but the queue '{self.spec.name}' has"
                f" room for {self.spec.num_slots}; raise queue_trajectories or lower the batch"
            )
        return End(self.spec, "source", (("slots_per_batch", slots_per_batch),))


@dataclass(frozen=True)
class Board:
    """Handle of a weight board. `version` is 0, or the restored version on resume."""

    spec: BoardSpec
    initial: np.ndarray
    version: int = 0

    @property
    def sink(self) -> End:
        return End(self.spec, "sink")

    def source(self, extra_lag_updates: int = 0) -> End:
        return End(self.spec, "source", (("extra_lag_updates", extra_lag_updates),))


@dataclass(frozen=True)
class Shared:
    """Handle of lock-free shared memory."""

    spec: SharedSpec
    initial: np.ndarray

    @property
    def end(self) -> End:
        return End(self.spec, "both")


@dataclass(frozen=True)
class Requests:
    """Handle of a request channel."""

    spec: RequestsSpec

    def client(self, index: int) -> End:
        return End(self.spec, "client", (("client", index),))

    @property
    def server(self) -> End:
        return End(self.spec, "server")


@dataclass(frozen=True)
class Stream:
    """Handle of a stream."""

    spec: StreamSpec

    def client(self, index: int) -> End:
        return End(self.spec, "client", (("client", index),))

    @property
    def server(self) -> End:
        return End(self.spec, "server")


@dataclass
class Node:
    """A role and its arguments; what a backend runs. `index` counts nodes of the same role name."""

    name: str
    role: Callable[..., Any]
    arguments: dict[str, Any]
    index: int
    kind: str

    def ends(self) -> Iterator[tuple[str, End]]:
        for argument, value in self.arguments.items():
            for end in value if isinstance(value, list | tuple) else (value,):
                if isinstance(end, End):
                    yield argument, end


@dataclass
class Group:
    """Nodes that share one process. With `threads`, each node has its own thread; otherwise they
    take turns in one, which keeps their interleaving exact (DQN's k steps to one update)."""

    nodes: list[Node]
    threads: bool = False
    restartable: bool = False
    """It may be restarted whatever its roles say: all it knows lies in shared memory."""

    @property
    def name(self) -> str:
        return "+".join(node.name for node in self.nodes)


@dataclass
class Topology:
    """Channels and nodes of one architecture."""

    architecture: str
    make_network: Callable[[], Any]
    """Builds the network that evaluation plays with."""
    weights: tuple[str, ...] = ("weights",)
    """The boards that hold its weights, one slice after the other."""
    queues: list[Queue] = field(default_factory=list)
    boards: list[Board] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    requests: list[Requests] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    colocated: list[Group] = field(default_factory=list)

    def queue(self, name: str, layout: Layout, num_slots: int) -> Queue:
        self.queues.append(Queue(QueueSpec(name, layout, num_slots)))
        return self.queues[-1]

    def board(self, name: str, initial: np.ndarray, history: int = 2, version: int = 0) -> Board:
        spec = BoardSpec(name, int(initial.size), history)
        self.boards.append(Board(spec, np.asarray(initial, dtype=np.float32), version))
        return self.boards[-1]

    @property
    def num_weights(self) -> int:
        """Length of the flat vector of `make_network`'s network."""
        return sum(board.spec.size for board in self.boards if board.spec.name in self.weights)

    def share(self, name: str, initial: np.ndarray) -> Shared:
        spec = SharedSpec(name, int(initial.size), str(initial.dtype))
        handle = Shared(spec, initial.reshape(-1))
        self.shared.append(handle)
        return handle

    def ask_about(self, name: str, queue: Queue, num_clients: int) -> Requests:
        """A channel for requests about rows of `queue`'s slots."""
        self.requests.append(Requests(RequestsSpec(name, queue.spec, num_clients)))
        return self.requests[-1]

    def stream(
        self,
        name: str,
        request: Layout,
        reply: Layout,
        num_clients: int,
        groups_per_client: int = 1,
    ) -> Stream:
        """A channel for questions that carry all they are about."""
        spec = StreamSpec(name, request, reply, num_clients, groups_per_client)
        self.streams.append(Stream(spec))
        return self.streams[-1]

    def add(self, kind: str, role: Callable[..., Any], **arguments: Any) -> Node:
        """Add a node. The backend calls `role(context, **arguments)` where the node runs."""
        index = sum(node.kind == kind for node in self.nodes)
        node = Node(f"{kind}-{index}", role, arguments, index, kind)
        self.nodes.append(node)
        return node

    def colocate(self, *nodes: Node, threads: bool = False, restartable: bool = False) -> None:
        """Run these nodes in one process."""
        self.colocated.append(Group(list(nodes), threads, restartable))

    def groups(self) -> list[Group]:
        """All nodes as process groups, in the order they were added."""
        groups: list[Group] = []
        for node in self.nodes:
            home = next((group for group in self.colocated if node in group.nodes), None)
            if home is None:
                groups.append(Group([node]))
            elif home not in groups:
                groups.append(home)
        return groups

    def describe(self, format: str = "text") -> str:
        """The diagram of the real wiring, as text or Mermaid."""
        from veldt.diagram import drawing

        return drawing(self, format)

    def kinds(self) -> dict[str, list[Node]]:
        """Nodes by the name of their role."""
        kinds: dict[str, list[Node]] = {}
        for node in self.nodes:
            kinds.setdefault(node.kind, []).append(node)
        return kinds

    def edges(self) -> list[tuple[str, str, str]]:
        """(from, to, label) between node kinds and channels, each once."""
        found: dict[tuple[str, str, str], None] = {}
        for node in self.nodes:
            for argument, end in node.ends():
                if end.side in WRITING_SIDES:
                    found[(node.kind, end.channel.name, argument)] = None
                if end.side in READING_SIDES:
                    found[(end.channel.name, node.kind, argument)] = None
        return list(found)
