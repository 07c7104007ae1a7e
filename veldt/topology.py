# SPDX-License-Identifier: Apache-2.0
"""Nodes and channels of a system, as a value.

An architecture builds a Topology: channels (queues of slots, boards of weights) and nodes (roles).
Passing a channel's end to a role, or to one of its parts, is the edge. A backend decides where
nodes run and binds each end to a live port; the topology does not depend on the backend.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, cast

import numpy as np

from veldt.errors import ConfigurationError
from veldt.ports import (
    ExperienceSink,
    ExperienceSource,
    ParameterSink,
    ParameterSource,
    RequestClient,
    RequestServer,
    StreamClient,
    StreamServer,
)
from veldt.role import EndLike, Role, leaves_of
from veldt.types import Layout, Parameters

if TYPE_CHECKING:
    from veldt.environments.lookup import ExternalEndpoint
    from veldt.networks import NetworkFactory
    from veldt.telemetry.result import RunResult


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
    """How many versions stay readable; more than two only where actors lag."""


@dataclass(frozen=True)
class SharedSpec:
    """Memory that several nodes read and write without locks (Hogwild)."""

    name: str
    size: int
    dtype: str


def numbered_name(stem: str, number: int) -> str:
    """Name of one of several similar channels; the first has no number."""
    return f"{stem}-{number}" if number else stem


def numbered(stem: str, count: int) -> list[str]:
    """Names of `count` similar channels."""
    return [numbered_name(stem, number) for number in range(count)]


def stem(channel: str) -> str:
    """The name without its numbers: "replay-0-batches-1" is "replay-batches"."""
    return re.sub(r"-\d+", "", channel)


UPDATES_SUFFIX = ".updates"  # counts of updates (int64) of the shared weights of this name


@dataclass(frozen=True)
class RequestsSpec:
    """Requests of actors to inference servers about rows of the slots of `queue`.

    A message is the number of a row: the server reads the observation and writes the action in
    place, so both need the same memory."""

    name: str
    queue: QueueSpec
    num_clients: int


@dataclass(frozen=True)
class StreamSpec:
    """Requests and replies of fixed layouts between clients and a server on any machine.

    Each group of a client has at most one open `request`, which gets one `reply`."""

    name: str
    request: Layout
    reply: Layout
    num_clients: int
    groups_per_client: int
    external: ExternalEndpoint | None = None


ServedSpec = TypeVar("ServedSpec", RequestsSpec, StreamSpec)
Client = TypeVar("Client")
Server = TypeVar("Server")
Channel = QueueSpec | BoardSpec | SharedSpec | RequestsSpec | StreamSpec


Side = Literal["sink", "source", "both", "client", "server"]
WRITING_SIDES = ("sink", "both", "client")
READING_SIDES = ("source", "both", "server")


@dataclass(frozen=True)
class End(EndLike):
    """One end of a channel.

    Handles give it the type of the port that replaces it when a node is bound, so a wrong edge is a
    type error."""

    channel: Channel
    side: Side
    """ "sink": the node writes. "source": the node reads. "both": shared memory. "client" sends and
    "server" answers requests."""
    slots_per_batch: int = 1
    """Of a queue's source: slots per batch, joined along the environment axis."""
    extra_lag_updates: int = 0
    """Of a board's source: versions that it is deliberately behind."""
    client: int = 0
    """Of requests and streams: the number of the client."""


@dataclass(frozen=True)
class Queue:
    """Handle of a queue."""

    spec: QueueSpec

    @property
    def sink(self) -> ExperienceSink:
        return cast(ExperienceSink, End(self.spec, "sink"))

    def source(self, slots_per_batch: int = 1) -> ExperienceSource:
        """Takes `slots_per_batch` slots at a time, joined along the environment axis."""
        if slots_per_batch > self.spec.num_slots:
            raise ConfigurationError(
                f"a batch takes {slots_per_batch} trajectories but the queue '{self.spec.name}' has"
                f" room for {self.spec.num_slots}; raise queue_trajectories or lower the batch"
            )
        return cast(ExperienceSource, End(self.spec, "source", slots_per_batch=slots_per_batch))


@dataclass(frozen=True)
class Board:
    """Handle of a weight board. `version` is 0, or the restored version on resume."""

    spec: BoardSpec
    initial: np.ndarray
    version: int = 0

    @property
    def sink(self) -> ParameterSink:
        return cast(ParameterSink, End(self.spec, "sink"))

    def source(self) -> ParameterSource:
        return cast(ParameterSource, End(self.spec, "source"))


@dataclass(frozen=True)
class Shared:
    """Handle of lock-free shared memory."""

    spec: SharedSpec
    initial: np.ndarray

    @property
    def end(self) -> np.ndarray:
        return cast(np.ndarray, End(self.spec, "both"))


@dataclass(frozen=True)
class Served(Generic[ServedSpec, Client, Server]):
    """Handle of a channel with clients and a server that answers them."""

    spec: ServedSpec

    def client(self, index: int) -> Client:
        return cast(Client, End(self.spec, "client", client=index))

    @property
    def server(self) -> Server:
        return cast(Server, End(self.spec, "server"))


class Requests(Served[RequestsSpec, RequestClient, RequestServer]):
    """Handle of a request channel."""


class Stream(Served[StreamSpec, StreamClient, StreamServer]):
    """Handle of a stream."""


Handle = Queue | Board | Shared | Requests | Stream


def lagging(end: EndLike, updates: int, lagged: dict[str, BoardSpec]) -> EndLike:
    """The same end, `updates` versions behind if it reads a board, whose new spec is noted."""
    if not isinstance(end, End) or not isinstance(end.channel, BoardSpec):
        return end
    channel = replace(end.channel, history=end.channel.history + updates)
    lagged[channel.name] = channel
    return replace(end, channel=channel, extra_lag_updates=updates)


@dataclass(eq=False)
class Node:
    """A role and its name. `index` counts nodes of the same kind."""

    name: str
    role: Role
    index: int
    kind: str

    def ends(self) -> Iterator[tuple[str, End]]:
        """The channel ends of the role and its parts, with the names of their fields."""
        for name, value in leaves_of(self.role):
            if isinstance(value, End):
                yield name, value


@dataclass
class Group:
    """Nodes that share one process.

    With `threads`, each node has its own thread; otherwise they are stepped in turn by one, which
    keeps their interleaving exact (DQN's k steps to one update)."""

    nodes: list[Node]
    threads: bool = False
    restartable: bool = False
    """May be restarted even if its roles may not: all of its state is in shared memory."""

    @property
    def name(self) -> str:
        return "+".join(node.name for node in self.nodes)


class Outcome(Protocol):
    """What a system adds to its run's result, and how it finds the best weights."""

    def add_to(
        self, result: RunResult, parameters: Callable[[str], Parameters], run_dir: Path
    ) -> None:
        """Add entries to `result`; `parameters` returns the newest vector of a board."""

    def best_weights(self, run_dir: Path) -> tuple[float, Parameters, int] | None:
        """Merit, weights and env steps of the best weights; None if nothing was measured."""


@dataclass
class Topology:
    """Channels and nodes of one architecture."""

    network: NetworkFactory
    """The network that is evaluated."""
    architecture: str = "own"
    weights: tuple[str, ...] = ("weights",)
    """The boards that hold its weights, in the order of the slices."""
    queues: list[Queue] = field(default_factory=list)
    boards: list[Board] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    requests: list[Requests] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    colocated: list[Group] = field(default_factory=list)
    outcome: Outcome | None = None
    """What the system adds to its run's result; None for most."""
    _counted: Counter[str] = field(default_factory=Counter)
    """Nodes by kind."""

    def queue(self, name: str, layout: Layout, num_slots: int) -> Queue:
        self.queues.append(Queue(QueueSpec(name, layout, num_slots)))
        return self.queues[-1]

    def several_queues(self, name: str, layout: Layout, num_slots: int, count: int) -> list[Queue]:
        """Similar queues; the first has no number after its name."""
        return [self.queue(each, layout, num_slots) for each in numbered(name, count)]

    def board(self, name: str, initial: NetworkFactory | np.ndarray, versions: int = 1) -> Board:
        """A board that begins with the first weights of a network, or with a vector. The newest
        `versions` can be read."""
        vector = initial if isinstance(initial, np.ndarray) else initial.initial_vector()
        spec = BoardSpec(name, int(vector.size), history=versions + 1)
        self.boards.append(Board(spec, np.asarray(vector, dtype=np.float32)))
        return self.boards[-1]

    @property
    def num_weights(self) -> int:
        """Length of the flat vector of `network`."""
        memories: list[Board | Shared] = [*self.boards, *self.shared]
        return sum(entry.spec.size for entry in memories if entry.spec.name in self.weights)

    def share(self, name: str, initial: np.ndarray) -> Shared:
        spec = SharedSpec(name, int(initial.size), str(initial.dtype))
        self.shared.append(Shared(spec, initial.reshape(-1)))
        return self.shared[-1]

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
        """A channel for requests that contain their data."""
        spec = StreamSpec(name, request, reply, num_clients, groups_per_client)
        self.streams.append(Stream(spec))
        return self.streams[-1]

    def add(self, kind: str, role: Role) -> Node:
        """Add a node; a backend binds and opens its role where it runs."""
        index = self._counted[kind]
        self._counted[kind] += 1
        node = Node(f"{kind}-{index}", role, index, kind)
        self.nodes.append(node)
        return node

    def of(self, *kinds: str) -> list[Node]:
        """All nodes of these kinds, in the order they were added."""
        return [node for node in self.nodes if node.kind in kinds]

    def colocate(self, *nodes: Node, threads: bool = False, restartable: bool = False) -> None:
        """Run these nodes in one process."""
        self.colocated.append(Group(list(nodes), threads, restartable))

    def channels(self) -> list[Handle]:
        """All channels; requests after their queues."""
        return [*self.queues, *self.boards, *self.shared, *self.requests, *self.streams]

    def groups(self) -> list[Group]:
        """All nodes as process groups, in the order they were added."""
        group_of = {id(node): group for group in reversed(self.colocated) for node in group.nodes}
        groups: dict[int, Group] = {}
        for node in self.nodes:
            group = group_of.get(id(node)) or Group([node])
            groups[id(group)] = group
        return list(groups.values())

    def only_feeds(self, nodes: list[Node]) -> bool:
        """Whether `nodes` send to others or read their weights, but none depends on them: no other
        node sends to them, asks them or reads their weights."""
        served, used = set[str](), set[str]()
        for node in nodes:
            for _, end in node.ends():
                serving = ("sink",) if isinstance(end.channel, BoardSpec) else READING_SIDES
                (served if end.side in serving else used).add(end.channel.name)
        rest = (node for node in self.nodes if node not in nodes)
        others = {end.channel.name for node in rest for _, end in node.ends()}
        return served.isdisjoint(others) and not used.isdisjoint(others)

    def describe(self, format: str = "text") -> str:
        """Draw the wiring as text or Mermaid.

        Args:
            format: "text" or "mermaid".
        """
        from veldt import diagram

        if format == "text":
            return diagram.text(self)
        if format == "mermaid":
            return diagram.mermaid(diagram.describe(self))
        raise ValueError(f"unknown format '{format}'; use text or mermaid")

    def kinds(self) -> dict[str, list[Node]]:
        """Nodes by kind."""
        kinds: dict[str, list[Node]] = {}
        for node in self.nodes:
            kinds.setdefault(node.kind, []).append(node)
        return kinds
