# SPDX-License-Identifier: Apache-2.0
"""What every backend offers the run that drives it, and the loop that steps nodes."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from veldt.backends.shared_memory.signals import Doorbell
from veldt.backends.traffic import counting
from veldt.context import NodeContext
from veldt.role import EndLike, Role, bound
from veldt.telemetry.counters import NodeSnapshot, NodeTelemetry, Spans
from veldt.topology import End, Group, Node
from veldt.types import Parameters

_CAPTURE_TICK_SECONDS = 0.02
_LONGEST_SLEEP_SECONDS = 0.1  # a bound on every wait, so that a lost ring costs little


@dataclass(frozen=True)
class BackendOptions:
    """How nodes run and are watched. With `verify` every slot carries a checksum. A process that is
    silent for `hang_seconds` is killed. Nodes record when they did what, about `timeline_seconds`
    back. On serial no step begins beyond `total_env_steps`, nor beyond a multiple of
    `checkpoint_env_steps` before who drives it has looked; elsewhere who drives the backend pauses
    it."""

    verify: bool = False
    hang_seconds: float = 60.0
    timeline_seconds: float = 0.0
    total_env_steps: int | None = None
    checkpoint_env_steps: int | None = None


DEFAULTS = BackendOptions()


class Capture(Protocol):
    """The state of all nodes and channels on its way into a checkpoint."""

    def ready(self) -> bool:
        """Whether it can be had. Raises CheckpointError, naming the node and the cause, when it
        cannot; until either, the backend must go on advancing."""

    def parts(self) -> dict[str, dict[str, np.ndarray]]:
        """The parts of a checkpoint; once, after `ready`, and on any thread."""


class Backend(Protocol):
    """Runs a topology. Between `start` and `stop`, `advance` lets work happen."""

    run_dir: Path | None

    @property
    def notes(self) -> list[str]:
        """What the backend saw and did about it, for the run to report and clear."""

    @property
    def restarts(self) -> int: ...

    @property
    def restarted(self) -> Counter[str]:
        """Restarts by group name."""

    def start(self) -> None: ...

    def advance(self, seconds: float) -> None:
        """Let the nodes work for about `seconds`. Raises NodeFailure when one of them failed."""

    def pause(self) -> None:
        """Let no node begin another step, now that the budget is spent; they can still be saved. On
        Ray they go on until they are stopped."""

    def snapshots(self) -> list[NodeSnapshot]:
        """Counters of every node, in the topology's order."""

    def take_spans(self) -> dict[str, Spans]:
        """By node: when it did what, if that was recorded; nothing more is recorded from now on."""

    def parameters(self, board: str) -> Parameters:
        """The newest published weights."""

    def publish(self, board: str, parameters: Parameters) -> None:
        """Put a newer version on a board that no node writes; also before `start`."""

    def queue_fills(self) -> dict[str, float]: ...

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id, where groups are processes."""

    def capture(self, patience_seconds: float) -> Capture:
        """Ask for the state of all nodes and channels. Nodes that a checkpoint can do without are
        waited for no longer than `patience_seconds`."""

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Begin from a checkpoint instead of anew. `generation` counts checkpoints of the run; it
        enters the random streams, so that what follows does not repeat what came before."""

    def stop(self) -> None:
        """Stop every node and leave nothing behind. May be called at any time, more than once."""


def captured(backend: Backend, patience_seconds: float = 60.0) -> dict[str, dict[str, np.ndarray]]:
    """The state of all nodes and channels, waited for while they work on."""
    capture = backend.capture(patience_seconds)
    while not capture.ready():
        backend.advance(_CAPTURE_TICK_SECONDS)
    return capture.parts()


class NodeFailure(RuntimeError):  # noqa: N818 - it reads as what it is in a trace
    """A role raised or died; names the node and carries its trace."""

    def __init__(self, node: str, cause: str, trace: str = "") -> None:
        super().__init__(f"{node} failed: {cause}")
        self.node, self.cause, self.trace = node, cause, trace


class RunningNode:
    """A constructed role with its name and its share of time."""

    def __init__(self, node: Node, role: Role, telemetry: NodeTelemetry) -> None:
        self.name, self.role, self.telemetry = node.name, role, telemetry
        self.waiting = telemetry.stage("wait")
        self.heartbeat = telemetry.gauge("heartbeat_seconds")

    def patience(self) -> float:
        """How long this node may be left alone although nobody rings."""
        return self.role.patience_seconds

    def step(self) -> bool:
        """One unit of work; whatever the role raises comes out as NodeFailure with its name."""
        try:
            return self.role.step()
        except Exception as error:
            raise _failure(self.name, error) from error


def construct(
    node: Node, context: NodeContext, open_end: Callable[[Node, End], Any]
) -> RunningNode:
    """Bind and open the node's role; whatever it raises comes out as NodeFailure."""

    def opened(end: EndLike) -> object:
        assert isinstance(end, End)
        return counting(open_end(node, end), end, context.telemetry)

    try:
        role = bound(node.role, opened)
        role.open(context)
    except Exception as error:
        raise _failure(node.name, error) from error
    return RunningNode(node, role, context.telemetry)


def close_all(nodes: list[RunningNode]) -> None:
    """Let roles that hold something outside Python give it back."""
    for node in nodes:
        node.role.close()


def _failure(name: str, error: Exception) -> NodeFailure:
    return NodeFailure(name, f"{type(error).__name__}: {error}", traceback.format_exc())


BetweenSteps = Callable[[list[RunningNode]], None]
"""Called between two steps, when every role is in a state that can be saved."""


def do_nothing(nodes: list[RunningNode]) -> None: ...


def never() -> bool:
    return False


def run_until_stopped(
    nodes: list[RunningNode],
    doorbell: Doorbell,
    stopped: Callable[[], bool],
    between_steps: BetweenSteps = do_nothing,
    paused: Callable[[], bool] = never,
) -> None:
    """Step `nodes` in turn; when none has anything to do, or all must pause, sleep until the
    doorbell rings."""
    while not stopped():
        between_steps(nodes)
        worked = False
        for node in nodes:
            worked |= not paused() and node.step()
        if not worked:
            started = time.perf_counter()
            doorbell.wait(min(_LONGEST_SLEEP_SECONDS, *(node.patience() for node in nodes)))
            slept = time.perf_counter() - started
            for node in nodes:
                node.waiting.add(slept)
        for node in nodes:
            node.heartbeat.set(time.monotonic())


def run_in_threads(
    nodes: list[RunningNode],
    doorbells: dict[str, Doorbell],
    stopped: Callable[[], bool],
    make_between_steps: Callable[[], BetweenSteps] = lambda: do_nothing,
    paused: Callable[[], bool] = never,
) -> None:
    """Step each node in a thread of its own. When one fails the others stop too."""
    failures: list[NodeFailure] = []

    def ended() -> bool:
        return stopped() or bool(failures)

    def run_one(node: RunningNode) -> None:
        try:
            own = make_between_steps()
            run_until_stopped([node], doorbells[node.name], ended, own, paused)
        except NodeFailure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run_one, args=(node,), name=node.name) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def doorbells_of(group: Group) -> dict[str, Doorbell]:
    """One doorbell per thread, by node name: nodes that take turns share theirs."""
    if group.threads:
        return {node.name: Doorbell() for node in group.nodes}
    return dict.fromkeys((node.name for node in group.nodes), Doorbell())


def is_restartable(group: Group) -> bool:
    return group.restartable or all(node.role.restartable for node in group.nodes)
