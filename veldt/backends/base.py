# SPDX-License-Identifier: Apache-2.0
"""The interface of backends, and the loop that steps nodes."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from veldt.backends.checkpoint_parts import (
    CHANNELS,
    restore_counters,
    restore_role,
    with_saved_channels,
)
from veldt.backends.shared_memory.fabric import Fabric, OverFabric, build_fabric
from veldt.backends.shared_memory.memory import Block, Waker
from veldt.checkpoints.store import read_part
from veldt.context import NodeContext
from veldt.errors import text_of
from veldt.role import EndLike, Role, bound
from veldt.telemetry.counters import (
    TELEMETRY_BYTES,
    NodeSnapshot,
    NodeTelemetry,
    Spans,
    span_bytes,
    traffic_name,
)
from veldt.topology import (
    WRITING_SIDES,
    BoardSpec,
    End,
    Group,
    Node,
    QueueSpec,
    SharedSpec,
    Topology,
    stem,
)
from veldt.types import Parameters

_CAPTURE_TICK_SECONDS = 0.02
_LONGEST_SLEEP_SECONDS = 0.1  # a bound on every wait, so that a lost notification costs little
_PASSED_BY = {
    (QueueSpec, "sink"): "commit",
    (QueueSpec, "source"): "take_batch",
    (BoardSpec, "sink"): "publish",
    (BoardSpec, "source"): "pull",
}
"""The call of a port that transfers something; for others `send` and `take`."""


@dataclass(frozen=True)
class BackendOptions:
    """How nodes run and are watched."""

    verify: bool = False
    """Every slot carries a checksum."""
    hang_seconds: float = 60.0
    """A process without a heartbeat for so long is killed."""
    timeline_seconds: float = 0.0
    """Nodes record when they did what, about so far back."""
    total_env_steps: int | None = None
    checkpoint_env_steps: int | None = None
    evaluation_env_steps: int | None = None
    """On serial no step begins beyond the total, nor beyond a multiple of the latter within one
    `advance`. On the others, the run pauses the backend."""


DEFAULTS = BackendOptions()


class Capture(Protocol):
    """The state of all nodes and channels for a checkpoint, while it is collected."""

    def ready(self) -> bool:
        """Whether it is complete; until then the backend must be advanced.

        Raises CheckpointError, which names node and cause, if it cannot be completed."""

    def parts(self) -> dict[str, dict[str, np.ndarray]]:
        """The parts of a checkpoint. Called once, after `ready`, on any thread."""


class Backend(Protocol):
    """Runs a topology. Between `start` and `stop`, `advance` lets work happen."""

    run_dir: Path | None

    @property
    def notes(self) -> list[str]:
        """Events for the run to report and remove, such as restarts."""

    @property
    def restarted(self) -> Counter[str]:
        """Restarts by group name."""

    @property
    def restarts(self) -> int:
        """Restarts of all groups."""

    def start(self) -> None: ...

    def advance(self, seconds: float) -> None:
        """Let the nodes work for about `seconds`. Raises NodeFailure when one of them fails."""

    def pause(self) -> None:
        """Begin no further step; nodes can still be saved. On Ray they run until stopped."""

    def snapshots(self) -> list[NodeSnapshot]:
        """Counters of every node, in the topology's order."""

    def take_spans(self) -> dict[str, Spans]:
        """By node: when it did what, if that was recorded. Ends the recording."""

    def parameters(self, board: str) -> Parameters:
        """The newest published weights."""

    def queue_fills(self) -> dict[str, float]: ...

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id, where groups are processes."""

    def capture(self, wait_seconds: float) -> Capture:
        """Ask for the state of all nodes and channels.

        Nodes that a checkpoint can do without have at most `wait_seconds` to answer."""

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Begin from a checkpoint. `generation` counts the checkpoints of the run.

        It enters the random streams, so that they do not repeat those before the checkpoint."""

    def stop(self, wait_seconds: float = 5.0) -> None:
        """Stop all nodes and free everything. May be called at any time, more than once. Nodes that
        take longer to end are killed."""


class LocalBackend(OverFabric):
    """State common to the backends of one machine, all of whose channels are in one fabric."""

    _between_processes: ClassVar[bool]

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        self._topology, self._seed, self._options = topology, seed, options
        self._checkpoint: Path | None = None
        self._generation = 0
        self._fabric = self._build_fabric()
        size = TELEMETRY_BYTES + span_bytes(options.timeline_seconds)
        self._telemetry = {
            node.name: Block(size, "veldt-telemetry", self._between_processes)
            for node in topology.nodes
        }
        self.run_dir: Path | None = None
        self.notes: list[str] = []
        self.restarted: Counter[str] = Counter()

    @property
    def restarts(self) -> int:
        return self.restarted.total()

    def _build_fabric(self) -> Fabric:
        return build_fabric(self._topology, self._between_processes, self._options.verify)

    def _begin_from(self, checkpoint: Path, generation: int) -> None:
        """Give channels and counters the content of a checkpoint."""
        self._generation = generation
        self._topology = with_saved_channels(self._topology, read_part(checkpoint, CHANNELS))
        self._fabric.close()
        self._fabric = self._build_fabric()
        for name, counters in self._telemetry.items():
            restore_counters(counters.memory, read_part(checkpoint, name))

    def _counters(self, node: str) -> NodeTelemetry:
        return NodeTelemetry(self._telemetry[node].memory)

    def snapshots(self) -> list[NodeSnapshot]:
        return [self._counters(name).snapshot() for name in self._telemetry]

    def take_spans(self) -> dict[str, Spans]:
        return {name: self._counters(name).take_spans() for name in self._telemetry}


def captured(backend: Backend, wait_seconds: float = 60.0) -> dict[str, dict[str, np.ndarray]]:
    """The state of all nodes and channels; advances the backend until it is complete."""
    capture = backend.capture(wait_seconds)
    while not capture.ready():
        backend.advance(_CAPTURE_TICK_SECONDS)
    return capture.parts()


class NodeFailure(RuntimeError):  # noqa: N818 - the name that users see in a trace
    """A role raised or died; has the node's name and the trace."""

    def __init__(self, node: str, cause: str, trace: str = "") -> None:
        super().__init__(f"{node} failed: {cause}")
        self.node, self.cause, self.trace = node, cause, trace


class RunningNode:
    """An open role with its name and counters."""

    def __init__(self, node: Node, role: Role, telemetry: NodeTelemetry) -> None:
        self.name, self.role, self.telemetry = node.name, role, telemetry
        self.waiting = telemetry.stage("wait")
        self.heartbeat = telemetry.gauge("heartbeat_seconds")

    def step(self) -> bool:
        """One unit of work. Raises NodeFailure for any exception of the role."""
        try:
            return self.role.step()
        except Exception as error:
            raise _failure(self.name, error) from error


def construct(
    node: Node,
    context: NodeContext,
    open_end: Callable[[Node, End], Any],
    saved: dict[str, np.ndarray] | None = None,
) -> RunningNode:
    """Bind and open the node's role, which loads the state that was `saved`. Raises NodeFailure for
    any exception of it."""

    def opened(end: EndLike) -> object:
        assert isinstance(end, End)
        return counting(open_end(node, end), end, context.telemetry)

    try:
        role = bound(node.role, opened)
        role.open(context)
        restore_role(role, saved or {})
    except Exception as error:
        raise _failure(node.name, error) from error
    return RunningNode(node, role, context.telemetry)


def counting(port: Any, end: End, telemetry: NodeTelemetry) -> Any:
    """Count the items that pass `port` among the node's counters; returns `port`.

    Shared memory is not counted: it is written in place."""
    if isinstance(end.channel, SharedSpec):
        return port
    is_writing = end.side in WRITING_SIDES
    method = _PASSED_BY.get((type(end.channel), end.side), "send" if is_writing else "take")
    counter = telemetry.counter(traffic_name(stem(end.channel.name), is_writing))
    call = getattr(port, method)
    items = end.slots_per_batch

    def sending(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        counter.add()

    def taking(*arguments: Any, **named: Any) -> Any:
        taken = call(*arguments, **named)
        if taken is not None:
            counter.add(items)
        return taken

    setattr(port, method, sending if is_writing else taking)
    return port


def close_all(nodes: list[RunningNode]) -> None:
    """Close roles, which may hold resources outside of Python."""
    for node in nodes:
        node.role.close()


def _failure(name: str, error: Exception) -> NodeFailure:
    return NodeFailure(name, f"{type(error).__name__}: {text_of(error)}", traceback.format_exc())


BetweenSteps = Callable[[list[RunningNode]], None]
"""Called between two steps, when the state of every role can be saved."""


def run_group(
    group: Group,
    nodes: list[RunningNode],
    wakers: dict[str, Waker],
    stopped: Callable[[], bool],
    make_between_steps: Callable[[], BetweenSteps],
    paused: Callable[[], bool] = lambda: False,
) -> None:
    """Step the nodes of `group` alternately, or with `threads` each in a thread of its own.

    When one fails, the others stop."""
    failures: list[NodeFailure] = []

    def run(part: list[RunningNode]) -> None:
        between_steps, waker = make_between_steps(), wakers[part[0].name]
        try:
            while not (stopped() or failures):
                between_steps(part)
                _step(part, waker, paused)
        except NodeFailure as failure:
            failures.append(failure)

    if group.threads:
        parts = [threading.Thread(target=run, args=([node],), name=node.name) for node in nodes]
        for thread in parts:
            thread.start()
        for thread in parts:
            thread.join()
    else:
        run(nodes)
    if failures:
        raise failures[0]


def _step(nodes: list[RunningNode], waker: Waker, paused: Callable[[], bool]) -> None:
    """Step each node once; sleep until notified when none has work or all must pause."""
    worked = False
    for node in nodes:
        worked |= not paused() and node.step()
    if not worked:
        started = time.perf_counter()
        idle = (node.role.max_sleep_seconds for node in nodes)
        waker.wait(min(_LONGEST_SLEEP_SECONDS, *idle))
        slept = time.perf_counter() - started
        for node in nodes:
            node.waiting.add(slept)
    for node in nodes:
        node.heartbeat.set(time.monotonic())


def wakers_of(group: Group) -> dict[str, Waker]:
    """One waker per thread, by node name: nodes that take turns share theirs."""
    if group.threads:
        return {node.name: Waker() for node in group.nodes}
    return dict.fromkeys((node.name for node in group.nodes), Waker())


def is_restartable(group: Group) -> bool:
    return group.restartable or all(node.role.restartable for node in group.nodes)
