# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes over shared memory: the default on one machine.

Processes come from a fork server that has the heavy imports done, so that a restart takes
milliseconds. The supervisor only watches: data and weights never pass through it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from veldt.backends.base import NodeFailure, doorbells_of, is_restartable
from veldt.backends.process.forkserver import server_context
from veldt.backends.process.recovery import Recovery
from veldt.backends.process.worker import Launch, run_group
from veldt.backends.saving import (
    CHANNELS,
    Parts,
    captured_channels,
    collect_part,
    exchange_directory,
    restore_counters,
    with_saved_channels,
)
from veldt.backends.shared_memory.fabric import (
    Fabric,
    build_fabric,
    descriptors_of,
    newest_parameters,
)
from veldt.backends.shared_memory.memory import Descriptor, SharedBlock
from veldt.backends.supervision import RestartPolicy, silent_seconds
from veldt.checkpoints.store import CheckpointError, read_part
from veldt.resources import require_descriptors
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot, NodeTelemetry
from veldt.topology import Group, Topology
from veldt.types import Parameters

_GRACE_SECONDS = 5.0
_CAPTURE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_STACK_SECONDS = 0.3
_CAPTURE_TICK_SECONDS = 0.02


@dataclass
class _Child:
    """One running process group and what ties it to this process."""

    group: Group
    holder: int
    process: BaseProcess
    lifeline: int
    """Write end of a pipe; the child dies when this process, and with it this end, is gone."""
    errors: int
    incarnation: int
    started: float


class ProcessBackend:
    """Starts, watches, restarts and stops the processes of a topology."""

    name = "process"

    def __init__(
        self, topology: Topology, seed: int, verify: bool = False, hang_seconds: float = 60.0
    ) -> None:
        self._topology, self._seed, self._verify = topology, seed, verify
        self._checkpoint: Path | None = None
        self._generation = 0
        self._answered_number = 0
        self.run_dir: Path | None = None
        self._groups = topology.groups()
        require_descriptors(descriptors_of(topology))
        self._fabric = self._build_fabric()
        self._control = SharedBlock(16, "veldt-control")
        """Byte 0: stop. Bytes 8 to 15: number of the checkpoint that is wanted."""
        self._telemetry_blocks = {
            node.name: SharedBlock(TELEMETRY_BYTES, "veldt-telemetry") for node in topology.nodes
        }
        self._children: list[_Child] = []
        self._waiting: list[tuple[float, _Child]] = []
        """Dead groups and when they may start again."""
        self._policies: dict[str, RestartPolicy] = {}
        self._next_look = 0.0
        self._hang_seconds = hang_seconds
        self.notes: list[str] = []
        """What the supervisor saw and did, for the run to report."""
        self.restarts = 0
        self.restarted: Counter[str] = Counter()

    def start(self) -> None:
        for number, group in enumerate(self._groups):
            self._children.append(self._launch(group, number + 1, self._generation))

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Before the start: begin from here. During the run: restarted groups begin from here."""
        self._checkpoint = checkpoint
        if self._children:
            return
        self._generation = generation
        self._topology = with_saved_channels(self._topology, read_part(checkpoint, CHANNELS))
        self._fabric.close()
        self._fabric = self._build_fabric()
        for node in self._topology.nodes:
            memory = self._telemetry_blocks[node.name].memory
            restore_counters(memory, read_part(checkpoint, node.name))

    def capture(self) -> Parts:
        """Ask every group for its part. One that does not answer in time is left out by name."""
        assert self.run_dir is not None
        directory = exchange_directory(self.run_dir)
        numbers = self._control.memory[8:16].cast("q")
        numbers[0] += 1
        for doorbell in self._fabric.doorbells.values():
            doorbell.ring()
        parts: Parts = {}
        missing = [node.name for node in self._topology.nodes]
        deadline = time.monotonic() + _CAPTURE_SECONDS
        while missing and time.monotonic() < deadline:
            self.advance(_CAPTURE_TICK_SECONDS)
            for name in list(missing):
                part = collect_part(directory, numbers[0], name)
                if part is not None:
                    parts[name] = part
                    missing.remove(name)
        shutil.rmtree(directory, ignore_errors=True)
        self._answered_number = numbers[0]
        if missing:
            raise CheckpointError(f"{', '.join(missing)} did not hand over their state in time")
        # Boards last: whoever resumes must not find newer weights in a learner than on its board.
        return {**parts, CHANNELS: captured_channels(self._fabric)}

    def _build_fabric(self) -> Fabric:
        fabric = build_fabric(self._topology, between_processes=True, verify=self._verify)
        for group in self._groups:
            fabric.doorbells.update(doorbells_of(group))
        self._recovery = Recovery(fabric)
        return fabric

    def _launch(self, group: Group, holder: int, incarnation: int) -> _Child:
        lifeline_reader, lifeline = os.pipe()
        errors, errors_writer = os.pipe()
        launch = Launch(
            nodes=group.nodes,
            threads=group.threads,
            fabric=self._fabric.part_for(group.nodes),
            telemetry={node.name: self._telemetry_blocks[node.name] for node in group.nodes},
            control=self._control,
            lifeline=Descriptor(lifeline_reader),
            errors=Descriptor(errors_writer),
            holder=holder,
            seed=self._seed,
            incarnation=incarnation,
            run_dir=self.run_dir,
            checkpoint=self._checkpoint,
            checkpoint_number=self._answered_number,
        )
        process = server_context().Process(target=run_group, args=(launch,), name=group.name)
        try:
            process.start()
        finally:
            os.close(lifeline_reader)
            os.close(errors_writer)
        os.set_blocking(errors, False)
        return _Child(group, holder, process, lifeline, errors, incarnation, time.monotonic())

    def advance(self, seconds: float) -> None:
        connection.wait([child.process.sentinel for child in self._children], timeout=seconds)
        for child in list(self._children):
            if not child.process.is_alive():
                self._ended(child)
        self._start_due()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._look_for_silence()
            self._recovery.look()

    def _look_for_silence(self) -> None:
        """Kill what hangs and keep its Python stack; it then ends like any dead process."""
        for child in self._children:
            blocks = (self._telemetry_blocks[node.name] for node in child.group.nodes)
            snapshots = [NodeTelemetry(block.memory).snapshot() for block in blocks]
            silent = silent_seconds(snapshots, child.started)
            if silent > self._hang_seconds and child.process.is_alive():
                stack = self._stack_of(child)
                self.notes.append(f"{child.group.name} was silent for {silent:.0f} s\n{stack}")
                child.process.kill()

    def _stack_of(self, child: _Child) -> str:
        assert child.process.pid is not None
        os.kill(child.process.pid, signal.SIGUSR1)
        time.sleep(_STACK_SECONDS)
        try:
            return os.read(child.errors, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return "(no Python stack: the process does not react to signals)"

    def _ended(self, child: _Child) -> None:
        child.process.join()
        failure = _reported(child.errors)
        if failure is not None:
            raise failure
        code = child.process.exitcode
        cause = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        policy = self._policies.setdefault(child.group.name, RestartPolicy())
        delay = policy.next_delay() if is_restartable(child.group) else None
        if delay is None:
            raise NodeFailure(child.group.name, f"its process ended with {cause}")
        self.notes.append(f"{child.group.name} ended with {cause} and is restarted")
        self._recovery.died(child.holder)
        self._children.remove(child)
        _close(child)
        self._waiting.append((time.monotonic() + delay, child))
        self._start_due()

    def _start_due(self) -> None:
        for due in [entry for entry in self._waiting if entry[0] <= time.monotonic()]:
            self._waiting.remove(due)
            child = due[1]
            self._children.append(self._launch(child.group, child.holder, child.incarnation + 1))
            self.restarts += 1
            self.restarted[child.group.name] += 1

    def snapshots(self) -> list[NodeSnapshot]:
        blocks = (self._telemetry_blocks[node.name] for node in self._topology.nodes)
        return [NodeTelemetry(block.memory).snapshot() for block in blocks]

    def parameters(self, board: str) -> Parameters:
        return newest_parameters(self._fabric, self._topology.shared, board)

    def queue_fills(self) -> dict[str, float]:
        return {name: queue.fill() for name, queue in self._fabric.queues.items()}

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id, for fault tests and profilers."""
        return {child.group.name: child.process.pid or 0 for child in self._children}

    def stop(self) -> None:
        self._control.memory[0] = 1
        for doorbell in self._fabric.doorbells.values():
            doorbell.ring()
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.is_alive():
                child.process.kill()  # it had its grace; SIGTERM would wait for Python code to run
                child.process.join()
            _close(child)
        self._children = []
        self._release_memory()

    def _release_memory(self) -> None:
        self._fabric.close()
        for block in self._telemetry_blocks.values():
            block.close()
        self._control.close()


def _reported(errors: int) -> NodeFailure | None:
    """What a child wrote before it gave up."""
    try:
        text = os.read(errors, 1 << 16)
    except BlockingIOError:
        return None
    if not text:
        return None
    try:
        report = json.loads(text)
    except ValueError:  # a stack that was asked for, not a report
        return None
    return NodeFailure(report["node"], report["cause"], report["trace"])


def _close(child: _Child) -> None:
    os.close(child.lifeline)
    os.close(child.errors)
    child.process.close()
