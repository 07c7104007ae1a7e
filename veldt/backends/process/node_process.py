# SPDX-License-Identifier: Apache-2.0
"""A node process: the code it runs, and the supervisor's handle on it.

It leads a process group, so that the programs of its environments end with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import active_children, connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from veldt.backends.base import (
    NodeFailure,
    RunningNode,
    close_all,
    construct,
    run_group,
)
from veldt.backends.checkpoint_parts import captured_node
from veldt.backends.process.forkserver import kept_running, server_context
from veldt.backends.shared_memory.fabric import Fabric, SentFabric
from veldt.backends.shared_memory.memory import Block, Descriptor
from veldt.checkpoints.store import CheckpointError, CheckpointStore, read_part
from veldt.context import NodeContext
from veldt.errors import ConfigurationError
from veldt.process_groups import die_with, ignore_signals, kill_group, lead_group
from veldt.resources import keep_freed_memory
from veldt.role import leaves_of
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import End, Group, Node, Topology

_LONGEST_CAUSE, _LONGEST_TRACE = 2000, 8000  # as JSON less than a pipe holds
_LAUNCHES, _LAUNCH_DELAY_SECONDS = 3, 0.1
_EXIT_CODE_SECONDS = 1.0
_DEATH_SECONDS = 5.0  # a killed process that still exists then is stuck in the kernel
_STACK_SECONDS = 0.3
_REMEDY = "define it at the top level of a module, or use --backend serial"


@dataclass
class Launch:
    """Everything that a node process is given."""

    group: Group
    fabric: Fabric | SentFabric
    telemetry: dict[str, Block]
    control: Block
    """Byte 0: stop. Byte 1: pause. Bytes 8 to 15: number of the requested checkpoint."""
    holder: int
    seed: int
    incarnation: int
    run_dir: Path | None
    checkpoint: Path | None
    """Where this group resumes from, if anywhere."""
    lifeline: Descriptor = field(default_factory=lambda: Descriptor(-1))
    errors: Descriptor = field(default_factory=lambda: Descriptor(-1))


def check_can_be_sent(topology: Topology) -> None:
    """Refuse what cannot be pickled, such as a lambda, a local function or an open file."""
    main = sys.modules["__main__"]
    main_is_a_file = main.__spec__ is not None or getattr(main, "__file__", None) is not None
    seen = set()
    for node in topology.nodes:
        for argument, value in leaves_of(node.role):
            if id(value) in seen or isinstance(value, End):
                continue
            seen.add(id(value))
            try:
                text = bytes(ForkingPickler.dumps(value))
            except Exception as error:  # a user's object may raise anything
                raise ConfigurationError(
                    f"{argument} of {node.name} cannot be sent to another process"
                    f" ({' '.join(str(error).split())}); {_REMEDY}"
                ) from error
            if b"__main__" in text and not main_is_a_file:
                raise ConfigurationError(
                    f"{argument} of {node.name} was defined at a prompt or in a notebook, where"
                    f" other processes cannot find it; {_REMEDY}"
                )


def run_process(launch: Launch) -> None:
    """Entry point of a node process."""
    lead_group()
    ignore_signals()
    _die_with_parent(launch.lifeline.fd)
    os.dup2(2, 1)  # standard output is the run's: an environment that prints must not spoil JSON
    # The supervisor asks a silent process for its stack before it replaces it.
    faulthandler.register(signal.SIGUSR1, file=launch.errors.fd, all_threads=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    os.nice(min(node.role.niceness for node in launch.group.nodes))
    try:
        sent = launch.fabric
        fabric = sent.open() if isinstance(sent, SentFabric) else sent
        nodes = [_construct(launch, fabric, node) for node in launch.group.nodes]
        control, make_saver = launch.control.memory, partial(SaveOnRequest, launch)
        stopped, paused = (lambda: control[0] != 0), (lambda: control[1] != 0)
        run_group(launch.group, nodes, fabric.wakers, stopped, make_saver, paused)
        has_children = bool(active_children())
        close_all(nodes)
    except NodeFailure as failure:
        cause, trace = failure.cause[:_LONGEST_CAUSE], failure.trace[-_LONGEST_TRACE:]
        _send(launch.errors.fd, {"node": failure.node, "cause": cause, "trace": trace})
        os._exit(1)
    if has_children:  # locks shared with them, as in an AsyncVectorEnv, go with the last reference
        nodes.clear()
        gc.collect()
    # No process depends on an orderly exit of the interpreter, and torch's takes a while.
    os._exit(0)


def _construct(launch: Launch, fabric: Fabric, node: Node) -> RunningNode:
    context = NodeContext(
        node.name,
        node.index,
        launch.seed,
        NodeTelemetry(launch.telemetry[node.name].memory),
        launch.incarnation,
        launch.run_dir,
        wake=fabric.wakers[node.name].wake,
    )
    saved = read_part(launch.checkpoint, node.name) if launch.checkpoint is not None else None
    return construct(node, context, partial(fabric.open, holder=launch.holder), saved)


def exchange_directory(run_dir: Path) -> Path:
    """Where node processes write their parts of a checkpoint for the supervisor."""
    return run_dir / ".exchange"


def part_path(directory: Path, number: int, name: str) -> Path:
    """The file of a node's part, which appears when it is complete."""
    return directory / name / f"checkpoint-{number:012d}"


class SaveOnRequest:
    """Writes the nodes' parts when the supervisor has raised the number of the checkpoint.

    If a part cannot be written, only the checkpoint is lost: the supervisor gets the cause."""

    def __init__(self, launch: Launch) -> None:
        self._numbers = launch.control.memory[8:16].cast("q")
        self._run_dir, self._errors = launch.run_dir, launch.errors.fd
        self._seen = max(0, self._numbers[0] - 1)  # the latest may still wait for this process

    def __call__(self, nodes: list[RunningNode]) -> None:
        number = self._numbers[0]
        if number == self._seen or self._run_dir is None:
            return
        self._seen = number
        directory = exchange_directory(self._run_dir)
        for node in nodes:
            if part_path(directory, number, node.name).exists():
                continue  # from a predecessor that died; the supervisor may have seen it
            try:
                # This can fail at a directory that the supervisor removes, as it needs no more.
                store = CheckpointStore(directory / node.name, keep=1)
                store.save(number, {node.name: captured_node(node)}, {})
            except CheckpointError as error:
                cause = str(error)[:_LONGEST_CAUSE]
                _send(self._errors, {"number": number, "node": node.name, "cause": cause})


def _die_with_parent(lifeline: int) -> None:
    if die_with(lifeline):
        return

    def wait_for_end() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _send(errors: int, report: Mapping[str, str | int]) -> None:
    """Write one line without blocking; it is dropped if the supervisor does not read."""
    os.set_blocking(errors, False)
    with contextlib.suppress(BlockingIOError):
        os.write(errors, json.dumps(report).encode() + b"\n")


class NodeProcess:
    """The supervisor's handle on the process of one group."""

    def __init__(self, launch: Launch) -> None:
        """`launch` without its pipes, which are made here."""
        self.group = group = launch.group
        self.holder, self.incarnation = launch.holder, launch.incarnation
        self.failure: NodeFailure | None = None
        """What a role raised; set by `read`."""
        self.unsaved: dict[tuple[int, str], str] = {}
        """By checkpoint and node: why its part could not be saved; filled by `read`."""
        for attempt in range(_LAUNCHES):
            try:
                self._start(launch)
                break
            except (EOFError, OSError) as error:  # the fork server died in these milliseconds
                if attempt == _LAUNCHES - 1:
                    cause = f"its process could not be started ({type(error).__name__}: {error})"
                    raise NodeFailure(group.name, cause) from error
                time.sleep(_LAUNCH_DELAY_SECONDS)
        self.started = time.monotonic()

    def _start(self, launch: Launch) -> None:
        reader, self._lifeline = os.pipe()
        self._errors, writer = os.pipe()
        own = replace(launch, lifeline=Descriptor(reader), errors=Descriptor(writer))
        try:
            with kept_running():
                self._process = _launched(own, self.group.name)
        except BaseException:
            # Closing the lifeline also ends a process that was started without an answer.
            os.close(self._lifeline)
            os.close(self._errors)
            raise
        finally:
            os.close(reader)
            os.close(writer)
        os.set_blocking(self._errors, False)
        self.end = self._process.sentinel
        """A descriptor that is readable once the process has ended."""
        if hasattr(os, "pidfd_open"):  # does not depend on the fork server
            with contextlib.suppress(ProcessLookupError):  # has ended already
                self.end = os.pidfd_open(self.process_id)

    @property
    def process_id(self) -> int:
        return self._process.pid or 0

    def is_alive(self) -> bool:
        return not connection.wait([self.end], timeout=0)

    def kill(self) -> None:
        """Kill it at once, with its process group: what its environments have started."""
        kill_group(self.process_id)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)  # in its first moments it leads no group
            connection.wait([self.end], timeout=_DEATH_SECONDS)

    def cause_of_death(self) -> str:
        with kept_running():
            self._process.join(_EXIT_CODE_SECONDS)
        code = self._process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def stack(self) -> str:
        """The Python stack of its threads at this moment."""
        self.read()
        os.kill(self.process_id, signal.SIGUSR1)
        time.sleep(_STACK_SECONDS)
        return self.read() or "(no Python stack: the process does not react to signals)"

    def read(self) -> str:
        """Read what the process wrote: reports are kept, and the rest, a stack, is returned."""
        try:
            text = os.read(self._errors, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return ""
        return "\n".join(line for line in text.splitlines() if not self._keep(line))

    def _keep(self, line: str) -> bool:
        try:
            report = json.loads(line)
            if "number" in report:
                self.unsaved[report["number"], report["node"]] = report["cause"]
            else:
                self.failure = NodeFailure(report["node"], report["cause"], report["trace"])
        except (ValueError, TypeError, KeyError):
            return False
        return True

    def close(self) -> None:
        os.close(self._lifeline)
        os.close(self._errors)
        if self.end != self._process.sentinel:
            os.close(self.end)
        with kept_running(), contextlib.suppress(ValueError):  # it is stuck in the kernel
            self._process.join(_EXIT_CODE_SECONDS)
            self._process.close()


def _launched(launch: Launch, name: str) -> ForkServerProcess:
    process = server_context().Process(target=run_process, args=(launch,), name=name)
    try:
        process.start()
    except ValueError:  # a fork server takes some 250 descriptors
        if isinstance(launch.fabric, SentFabric):
            raise
        return _launched(replace(launch, fabric=SentFabric.of(launch.fabric)), name)
    return process
