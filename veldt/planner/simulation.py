# SPDX-License-Identifier: Apache-2.0
"""Simulates a topology: each actor, learner, replay and inference server is a process of a small
discrete-event engine, over the topology's own queues, slots, batch rules, groups and barriers."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from veldt.planner.times import Times
from veldt.roles.actor import Actor
from veldt.roles.inference import SharedMemoryInference
from veldt.roles.learner import Learner
from veldt.roles.replay import Replay, UniformTable
from veldt.roles.stream_inference import StreamInference
from veldt.run.plan import Plan
from veldt.topology import End, Node, QueueSpec, RequestsSpec, StreamSpec

_MOST_PIECES = 16  # of a trajectory
_ACTORS, _OTHERS = 1, 0
"""Urgencies: actors are nicer, as in the real backends."""

Process = Generator["Work | Event", None, None]
"""A generator that yields what it waits for."""


@dataclass(frozen=True)
class Work:
    """Seconds on a core; lower urgencies run first, as with niceness. The owner "" sleeps."""

    seconds: float
    owner: str
    urgency: int = _OTHERS


@dataclass(eq=False)
class Event:
    """Wakes the processes that wait for it."""

    waiting: list[Process] = field(default_factory=list)


class Engine:
    """Runs processes on `cores`. Work is not interrupted, because all of it is short."""

    def __init__(self, cores: int) -> None:
        self.now = 0.0
        self.num_steps = 0
        self.busy: dict[str, float] = {}
        """Seconds on a core, by owner; cleared by the caller."""
        self._free, self._number = cores, 0
        self._later: list[tuple[float, int, Process, Work]] = []
        self._queue: list[tuple[int, int, Process, Work]] = []
        self._ready: deque[Process] = deque()

    def spawn(self, process: Process) -> None:
        self._ready.append(process)

    def fire(self, event: Event) -> None:
        self._ready.extend(event.waiting)
        event.waiting.clear()

    def run(self, until: float, most_steps: int) -> None:
        """Continue until `until` seconds, or until so many steps have been made in all."""
        while self.num_steps < most_steps:
            while self._ready:
                self._resume(self._ready.popleft())
            while self._queue and self._free:
                _, _, process, work = heapq.heappop(self._queue)
                self._free -= 1
                self.busy[work.owner] = self.busy.get(work.owner, 0.0) + work.seconds
                self._wake_after(work, process)
            if not self._later:
                return
            if self._later[0][0] > until:
                self.now = max(self.now, until)
                return
            self.now, _, process, work = heapq.heappop(self._later)
            self._free += work.owner != ""
            self.num_steps += 1
            self._ready.append(process)

    def _resume(self, process: Process) -> None:
        try:
            asked = next(process)
        except StopIteration:
            return
        if isinstance(asked, Event):
            asked.waiting.append(process)
        elif not asked.owner:
            self._wake_after(asked, process)
        else:
            self._number += 1
            heapq.heappush(self._queue, (asked.urgency, self._number, process, asked))

    def _wake_after(self, work: Work, process: Process) -> None:
        self._number += 1
        heapq.heappush(self._later, (self.now + work.seconds, self._number, process, work))


@dataclass
class QueueState:
    """A queue: the number of free slots, and the version with which each filled one began."""

    free: int
    filled: deque[float] = field(default_factory=deque)
    changed: Event = field(default_factory=Event)


@dataclass
class ServerState:
    """Requests that wait for a forward pass, each an event that its answer fires."""

    enough: int
    patience: float
    open: list[Event] = field(default_factory=list)
    came: Event = field(default_factory=Event)


class Lock:
    """Held by one process at a time: a thread shared by several nodes or groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._taken, self._freed = engine, False, Event()

    def held(self, *demands: Work) -> Process:
        while self._taken:
            yield self._freed
        self._taken = True
        yield from demands
        self._taken = False
        self._engine.fire(self._freed)


class Simulation:
    """One topology on a number of cores."""

    def __init__(self, plan: Plan, times: Times, cores: int, seed: int = 0) -> None:
        self.engine, self._times, self._plan = Engine(cores), times, plan
        self._random = np.random.default_rng(seed)
        self.env_steps = self.updates = 0.0
        self.lags: list[float] = []
        topology = plan.topology
        self._queues = {
            queue.spec.name: QueueState(queue.spec.num_slots) for queue in topology.queues
        }
        self._published, changed = Event(), Event()
        for node in topology.nodes:
            if isinstance(node.role, Replay):  # waits for any of its queues
                for _, end in node.ends():
                    if isinstance(end.channel, QueueSpec):
                        self._queues[end.channel.name].changed = changed
        # One lock per process, also with threads: small networks hold Python's lock most of the
        # time.
        self._locks: dict[str, Lock] = {}
        for group in topology.groups():
            self._locks |= dict.fromkeys((node.name for node in group.nodes), Lock(self.engine))
        self._servers: dict[str, ServerState] = {}
        self._sink_of_server: dict[str, str] = {}
        for node in topology.nodes:
            if isinstance(node.role, SharedMemoryInference | StreamInference):
                channel, rule = _end(node, RequestsSpec, StreamSpec).channel.name, node.role.rule
                server = ServerState(min(rule.enough, rule.most), rule.patience_seconds)
                self._servers.setdefault(channel, server)
                if isinstance(node.role, StreamInference):
                    self._sink_of_server[channel] = _end(node, QueueSpec).channel.name
        for node in topology.nodes:
            match node.role:
                case Actor() as role:
                    for _ in range(role.environments.num_groups):
                        self.engine.spawn(self._actor(node, role))
                case Learner():
                    self.engine.spawn(self._learner(node))
                case Replay() as role:
                    self.engine.spawn(self._replay(node, role))
                case SharedMemoryInference() | StreamInference():
                    self.engine.spawn(self._inference(node))

    def _cost(self, node: Node, stage: str, count: int = 1) -> float:
        return self._times.drawn(f"{node.kind}/{stage}", count, self._random)

    def _actor(self, node: Node, role: Actor) -> Process:
        asks = [end.channel.name for _, end in node.ends() if end.side == "client"]
        sinks = [end.channel.name for _, end in node.ends() if isinstance(end.channel, QueueSpec)]
        queue_name = sinks[0] if sinks else self._sink_of_server[asks[0]]
        queue = self._queues[queue_name]
        steps, env_steps = trajectory(self._plan)
        # Fewer steps at once where they sleep: otherwise actors that begin together would wait for
        # a core with all they have to do, before any of them sleeps.
        share = self._times.step_cpu_share
        most = 1 if asks else steps if share == 1.0 else math.ceil(steps / _MOST_PIECES)
        lock, needed = self._locks[node.name], 0.0
        while True:
            while not queue.free:
                yield queue.changed
            queue.free -= 1
            while role.pacing is not None and self.updates < needed - role.pacing.eta:
                yield self._published
            version = self.updates
            if role.pacing is not None:
                needed = max(needed, version)
                version = min(version, max(0.0, needed // 1 - role.pacing.eta))
            for begun in range(0, steps, most):
                few = min(most, steps - begun)
                if asks:
                    answered = Event()
                    self._servers[asks[0]].open.append(answered)
                    self.engine.fire(self._servers[asks[0]].came)
                    yield answered
                stepping = self._cost(node, "step", few)
                own = self._cost(node, "other", few) + self._cost(node, "infer", few)
                work = [Work(own + share * stepping, node.kind, _ACTORS)]
                if share < 1.0:
                    work.append(Work((1.0 - share) * stepping, ""))
                yield from lock.held(*work)
                self.env_steps += few * env_steps / steps
            hand_over = self._cost(node, "hand_over") + self._cost(node, "pull")
            yield Work(hand_over, node.kind, _ACTORS)
            needed += 1 / role.pacing.share if role.pacing else 0
            changes = asks and role.pacing is None  # also within a trajectory
            queue.filled.append((version + self.updates) / 2 if changes else version)
            self.engine.fire(queue.changed)

    def _inference(self, node: Node) -> Process:
        server = self._servers[_end(node, RequestsSpec, StreamSpec).channel.name]
        while True:
            while not server.open:
                yield server.came
            due = self.engine.now + server.patience
            if len(server.open) < server.enough and server.patience:
                self.engine.spawn(self._alarm(server))
            while len(server.open) < server.enough and self.engine.now < due - 1e-9:
                yield server.came
            taken, server.open = server.open, []
            seconds = self._times.seconds(f"{node.kind}/infer", len(taken))
            seconds += self._cost(node, "assemble", len(taken))
            yield from self._locks[node.name].held(Work(seconds, node.kind))
            for answered in taken:
                self.engine.fire(answered)

    def _alarm(self, server: ServerState) -> Process:
        yield Work(server.patience, "")
        self.engine.fire(server.came)

    def _learner(self, node: Node) -> Process:
        end = _end(node, QueueSpec, side="source")
        queue, slots = self._queues[end.channel.name], self._plan.slots_per_update()
        rows = self._plan.rows_per_update()
        growth = {}
        for stage in ("hand_over", "learn", "publish", "other"):
            key = f"{node.kind}/{stage}"
            growth[stage] = self._times.seconds(key, rows) / (self._times.mean(key) or 1.0)
        while True:
            while len(queue.filled) < slots:
                yield queue.changed
            self.lags.extend(self.updates - queue.filled.popleft() for _ in range(slots))
            seconds = sum(self._cost(node, stage) * growth[stage] for stage in growth)
            yield from self._locks[node.name].held(Work(seconds, node.kind))
            queue.free += slots
            self.updates += 1
            self.engine.fire(queue.changed)
            self.engine.fire(self._published)

    def _replay(self, node: Node, role: Replay) -> Process:
        ends = [end for _, end in node.ends() if isinstance(end.channel, QueueSpec)]
        source = self._queues[ends[0].channel.name]
        sinks = [self._queues[end.channel.name] for end in ends if end.side == "sink"]
        limiter, lock = role.table.make_limiter(), self._locks[node.name]
        limiter.num_inserted = limiter.min_size_to_sample  # the steady state is planned
        assert isinstance(ends[0].channel, QueueSpec)
        rows, width = ends[0].channel.layout["first"].shape[:2]
        items = (rows - 1) * width if isinstance(role.table, UniformTable) else width
        while True:
            worked = False
            if source.filled and limiter.can_insert(items):
                source.filled.popleft()
                source.free += 1
                limiter.num_inserted += items
                yield from lock.held(Work(self._cost(node, "add"), node.kind))
                self.engine.fire(source.changed)
                worked = True
            for sink in sinks:
                if sink.free and limiter.can_sample(role.table.batch_size):
                    sink.free -= 1
                    limiter.num_sampled += role.table.batch_size
                    yield from lock.held(Work(self._cost(node, "draw"), node.kind))
                    sink.filled.append(self.updates)
                    self.engine.fire(sink.changed)
                    worked = True
            if not worked:
                yield source.changed


def trajectory(plan: Plan) -> tuple[int, float]:
    """Steps of a trajectory of one actor's environments, and its env steps."""
    layouts = (queue.spec.layout for queue in plan.topology.queues)
    rows, width = next(layout["first"].shape[:2] for layout in layouts if "first" in layout)
    return rows - 1, (rows - 1) * width / plan.topology.network.spec.rows_per_env_step


def _end(node: Node, *kinds: type, side: str | None = None) -> End:
    found = (end for _, end in node.ends() if isinstance(end.channel, kinds))
    return next(end for end in found if side is None or end.side == side)
