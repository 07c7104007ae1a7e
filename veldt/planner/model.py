# SPDX-License-Identifier: Apache-2.0
"""Simulates the real topology: every actor, learner, replay and inference server of it is a process
of the simulator, over its own queues, slots, batch rules, groups and barriers. Nothing of an
architecture is described here a second time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from veldt.planner.engine import Engine, Process, Signal, Sleep, Work
from veldt.planner.times import Times
from veldt.roles.actor import Actor
from veldt.roles.inference import SharedMemoryInference
from veldt.roles.learner import Learner
from veldt.roles.replay import Replay
from veldt.roles.stream_inference import StreamInference
from veldt.run.plan import Plan
from veldt.topology import End, Node, QueueSpec, RequestsSpec, StreamSpec

_MOST_PIECES = 16  # of a trajectory
_ACTORS, _OTHERS = 1, 0
"""Urgencies: actors are nicer, as in the real backends."""


@dataclass
class Station:
    """A queue: free slots, and what waits in the filled ones (the version each began with)."""

    free: int
    filled: deque[float] = field(default_factory=deque)
    changed: Signal = field(default_factory=Signal)


@dataclass
class Server:
    """Questions that wait for a forward pass: (version told to, signal of the asker)."""

    enough: int
    patience: float
    open: list[tuple[Signal, list[bool]]] = field(default_factory=list)
    came: Signal = field(default_factory=Signal)


class Model:
    """One topology on so many cores."""

    def __init__(self, plan: Plan, times: Times, cores: int, seed: int = 0) -> None:
        self.engine, self._times = Engine(cores), times
        self._random = np.random.default_rng(seed)
        self._plan, self._cores = plan, cores
        self.env_steps = self.trained_steps = self.updates = self.lag_sum = self.lag_rows = 0.0
        self.lags: list[float] = []
        topology = plan.topology
        self._rows_per_env_step = topology.network.spec.rows_per_env_step
        queues = (queue.spec for queue in topology.queues)
        self._stations = {spec.name: Station(spec.num_slots) for spec in queues}
        self._group_lock: dict[str, Lock] = {}
        self._version_signal = Signal()
        self._servers: dict[str, Server] = {}
        self._server_sink: dict[str, str] = {}
        for group in topology.groups():
            # Threads, too: small networks on a CPU hold Python's lock nearly all the time.
            shared = Lock()
            for node in group.nodes:
                self._group_lock[node.name] = shared
        for node in topology.nodes:
            if isinstance(node.role, SharedMemoryInference | StreamInference):
                self._add_server(node, node.role)
        for node in topology.nodes:
            for process in self._processes(node):
                self.engine.spawn(process)

    def _processes(self, node: Node) -> Iterator[Process]:
        role = node.role
        if isinstance(role, Actor):
            for _ in range(role.environments.num_groups):
                yield self._actor(node, role)
        elif isinstance(role, Learner):
            yield self._learner(node)
        elif isinstance(role, Replay):
            yield self._replay(node, role)
        elif isinstance(role, SharedMemoryInference | StreamInference):
            yield self._inference(node)

    def _add_server(self, node: Node, role: SharedMemoryInference | StreamInference) -> None:
        channel = _end(node, RequestsSpec, StreamSpec).channel.name
        rule = role.rule
        server = Server(min(rule.enough, rule.most), rule.patience_seconds)
        self._servers.setdefault(channel, server)
        if isinstance(role, StreamInference):
            self._server_sink[channel] = _end(node, QueueSpec).channel.name

    def _cost(self, node: Node, stage: str, count: int = 1) -> float:
        return self._times.drawn(f"{node.kind}/{stage}", count, self._random)

    def _actor(self, node: Node, role: Actor) -> Process:
        asks = [end.channel.name for _, end in node.ends() if end.side == "client"]
        sinks = [end.channel.name for _, end in node.ends() if isinstance(end.channel, QueueSpec)]
        station = self._stations[sinks[0] if sinks else self._server_sink[asks[0]]]
        steps = self._rows(node) - 1
        width, lock, needed = role.environments.width, self._group_lock[node.name], 0.0
        while True:
            while not station.free:
                yield station.changed
            station.free -= 1
            while role.synchronous and self.updates < needed:
                yield self._version_signal
            version = self.updates
            if asks:
                for _ in range(steps):
                    yield from self._ask(asks[0])
                    yield from lock.held(self.engine, self._step(node, 1, width, infer=True))
            else:
                for few in self._pieces(steps):
                    yield from lock.held(self.engine, self._step(node, few, width, infer=True))
            hand_over = self._cost(node, "hand_over") + self._cost(node, "pull")
            yield Work(hand_over, node.kind, _ACTORS)
            needed = version + 1
            station.filled.append((version + self.updates) / 2 if asks else version)
            self.engine.fire(station.changed)

    def _pieces(self, steps: int) -> Iterator[int]:
        """Steps that are simulated at once: all, unless they sleep. Actors that begin at the same
        time would else wait for a core with all they have to do, before any of them sleeps."""
        size = steps if self._times.step_cpu_share == 1.0 else math.ceil(steps / _MOST_PIECES)
        while steps > 0:
            yield min(size, steps)
            steps -= size

    def _step(self, node: Node, steps: int, width: int, infer: bool) -> Process:
        """Steps in a row: what they need of a core, then what they sleep."""
        stepping, share = self._cost(node, "step", steps), self._times.step_cpu_share
        own = self._cost(node, "other", steps) + (self._cost(node, "infer", steps) if infer else 0)
        yield Work(own + share * stepping, node.kind, _ACTORS)
        if share < 1.0:
            yield Sleep((1.0 - share) * stepping)
        self.env_steps += steps * width / self._rows_per_env_step

    def _ask(self, channel: str) -> Process:
        server, answered, done = self._servers[channel], Signal(), [False]
        server.open.append((answered, done))
        self.engine.fire(server.came)
        while not done[0]:
            yield answered

    def _inference(self, node: Node) -> Process:
        server = self._servers[_end(node, RequestsSpec, StreamSpec).channel.name]
        a, m = self._times.infer_seconds_per_group.get(node.kind, (0.0, 0.0))
        lock = self._group_lock[node.name]
        while True:
            while not server.open:
                yield server.came
            due = self.engine.now + server.patience
            if len(server.open) < server.enough and server.patience:
                self.engine.spawn(_alarm(self.engine, server.patience, server.came))
            while len(server.open) < server.enough and self.engine.now < due - 1e-9:
                yield server.came
            taken, server.open = server.open, []
            seconds = a + m * len(taken) + self._cost(node, "assemble", len(taken))
            yield from lock.held(self.engine, _worked(seconds, node.kind))
            for answered, done in taken:
                done[0] = True
                self.engine.fire(answered)

    def _learner(self, node: Node) -> Process:
        end = _end(node, QueueSpec, side="source")
        station, slots = self._stations[end.channel.name], end.slots_per_batch
        rows, lock = self._plan.rows_per_update(), self._group_lock[node.name]
        while True:
            while len(station.filled) < slots:
                yield station.changed
            versions = [station.filled.popleft() for _ in range(slots)]
            self._count_lags(versions)
            yield from lock.held(self.engine, self._update(node, rows))
            station.free += slots
            self.updates += 1
            self.trained_steps += rows / self._rows_per_env_step
            self.engine.fire(station.changed)
            self.engine.fire(self._version_signal)

    def _update(self, node: Node, rows: int) -> Process:
        seconds = sum(
            self._cost(node, stage) * self._times.growth(f"{node.kind}/{stage}", rows)
            for stage in ("hand_over", "learn", "publish", "other")
        )
        yield Work(seconds, node.kind, _OTHERS)

    def _count_lags(self, versions: list[float]) -> None:
        self.lags.extend(self.updates - version for version in versions)

    def _replay(self, node: Node, role: Replay) -> Process:
        ends = [end for _, end in node.ends() if isinstance(end.channel, QueueSpec)]
        source = self._stations[ends[0].channel.name]
        sinks = [self._stations[end.channel.name] for end in ends if end.side == "sink"]
        limiter, lock = role.table.make_limiter(), self._group_lock[node.name]
        limiter.num_inserted = limiter.min_size_to_sample  # planned is the steady state
        rows = (self._queue_rows(ends[0]) - 1) * self._queue_width(ends[0])
        while True:
            worked = False
            if source.filled and limiter.can_insert(rows):
                source.filled.popleft()
                source.free += 1
                limiter.num_inserted += rows
                yield from lock.held(self.engine, self._work(node, "add"))
                self.engine.fire(source.changed)
                worked = True
            for sink in sinks:
                if sink.free and limiter.can_sample(role.table.batch_size):
                    sink.free -= 1
                    limiter.num_sampled += role.table.batch_size
                    yield from lock.held(self.engine, self._work(node, "draw"))
                    sink.filled.append(self.updates)
                    self.engine.fire(sink.changed)
                    worked = True
            if not worked:
                both = Signal()
                for station in (source, *sinks):
                    self.engine.spawn(_relay(self.engine, station.changed, both))
                yield both

    def _work(self, node: Node, stage: str) -> Process:
        yield Work(self._cost(node, stage), node.kind, _OTHERS)

    def _rows(self, node: Node) -> int:
        """Rows of the trajectories that an actor fills."""
        for _, end in node.ends():
            if isinstance(end.channel, QueueSpec):
                return self._queue_rows(end)
        channel = next(end.channel.name for _, end in node.ends() if end.side == "client")
        queues = {queue.spec.name: queue.spec for queue in self._plan.topology.queues}
        return queues[self._server_sink[channel]].layout["first"].shape[0]

    def _queue_rows(self, end: End) -> int:
        assert isinstance(end.channel, QueueSpec)
        return end.channel.layout["first"].shape[0]

    def _queue_width(self, end: End) -> int:
        assert isinstance(end.channel, QueueSpec)
        return end.channel.layout["first"].shape[1]


class Lock:
    """One at a time: a thread that several nodes, or groups, take turns in."""

    def __init__(self) -> None:
        self._taken, self._freed = False, Signal()

    def held(self, engine: Engine, process: Process) -> Process:
        while self._taken:
            yield self._freed
        self._taken = True
        yield from process
        self._taken = False
        engine.fire(self._freed)


def _worked(seconds: float, owner: str) -> Process:
    yield Work(seconds, owner, _OTHERS)


def _alarm(engine: Engine, seconds: float, told: Signal) -> Process:
    yield Sleep(seconds)
    engine.fire(told)


def _relay(engine: Engine, heard: Signal, told: Signal) -> Process:
    yield heard
    engine.fire(told)


def _end(node: Node, *kinds: type, side: str | None = None) -> End:
    found = (end for _, end in node.ends() if isinstance(end.channel, kinds))
    return next(end for end in found if side is None or end.side == side)
