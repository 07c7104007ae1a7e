# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes over shared memory: the default on one machine.

Processes come from a fork server that has the heavy imports done, so that a restart takes
milliseconds. The supervisor only watches: data and weights never pass through it.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from multiprocessing import connection
from pathlib import Path

from veldt.backends.base import DEFAULTS, BackendOptions, NodeFailure, doorbells_of, is_restartable
from veldt.backends.local import LocalBackend
from veldt.backends.process.capturing import ProcessCapture, dispensable_nodes
from veldt.backends.process.child import Child, Unsaved
from veldt.backends.process.forkserver import keep_running
from veldt.backends.process.recovery import Recovery
from veldt.backends.process.worker import Launch
from veldt.backends.saving import (
    CHANNELS,
    captured_channels,
    exchange_directory,
    restore_counters,
    with_saved_channels,
)
from veldt.backends.shared_memory.fabric import Fabric, build_fabric, descriptors_of
from veldt.backends.shared_memory.memory import SharedBlock
from veldt.backends.shared_memory.streams import remove_orphans
from veldt.backends.supervision import Attention, RestartPolicy, silent_seconds
from veldt.checkpoints.store import read_part
from veldt.resources import require_descriptors
from veldt.telemetry.counters import TELEMETRY_BYTES, NodeSnapshot, NodeTelemetry, Spans, span_bytes
from veldt.topology import Group, Topology

_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


class ProcessBackend(LocalBackend):
    """Starts, watches, restarts and stops the processes of a topology."""

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        super().__init__(topology, seed, options)
        self._answered_number = 0
        self._groups = topology.groups()
        require_descriptors(descriptors_of(topology))
        self._fabric = self._build_fabric()
        self._control = SharedBlock(16, "veldt-control")
        """Byte 0: stop. Byte 1: pause. Bytes 8 to 15: number of the checkpoint that is wanted."""
        size = TELEMETRY_BYTES + span_bytes(options.timeline_seconds)
        self._telemetry_blocks = {
            node.name: SharedBlock(size, "veldt-telemetry") for node in topology.nodes
        }
        self._children: list[Child] = []
        self._waiting: list[tuple[float, Child]] = []
        """Dead groups and when they may start again."""
        self._policies: dict[str, RestartPolicy] = {}
        self._next_look, self._attention = 0.0, Attention()

    def start(self) -> None:
        remove_orphans()
        # None is waited for. A GPU takes longest to begin with, while environments are opened.
        numbered = list(enumerate(self._groups, start=1))
        for holder, group in sorted(numbered, key=lambda entry: not _uses_gpu(entry[1])):
            self._children.append(self._launch(group, holder, self._generation))

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

    def capture(self, patience_seconds: float) -> ProcessCapture:
        """Ask every group for its part."""
        assert self.run_dir is not None
        numbers = self._control.memory[8:16].cast("q")
        # Who starts from now on answers for this one, and need not for those before.
        self._answered_number = numbers[0]
        numbers[0] += 1
        for doorbell in self._fabric.doorbells.values():
            doorbell.ring()
        return ProcessCapture(
            exchange_directory(self.run_dir),
            numbers[0],
            [node.name for node in self._topology.nodes],
            dispensable_nodes(self._topology),
            patience_seconds,
            channels=partial(captured_channels, self._fabric),
            counters=lambda name: NodeTelemetry(self._telemetry_blocks[name].memory).to_bytes(),
            unsaved=self._unsaved,
            last=self._checkpoint,
        )

    def _build_fabric(self) -> Fabric:
        fabric = build_fabric(self._topology, between_processes=True, verify=self._options.verify)
        for group in self._groups:
            fabric.doorbells.update(doorbells_of(group))
        self._recovery = Recovery(fabric)
        return fabric

    def _launch(self, group: Group, holder: int, incarnation: int) -> Child:
        launch = Launch(
            nodes=group.nodes,
            threads=group.threads,
            fabric=self._fabric.part_for(group.nodes),
            telemetry={node.name: self._telemetry_blocks[node.name] for node in group.nodes},
            control=self._control,
            holder=holder,
            seed=self._seed,
            incarnation=incarnation,
            run_dir=self.run_dir,
            checkpoint=self._checkpoint,
            checkpoint_number=self._answered_number,
        )
        return Child(group, launch)

    def advance(self, seconds: float) -> None:
        connection.wait([child.end for child in self._children], timeout=seconds)
        for child in list(self._children):
            if not child.is_alive():
                self._ended(child)
        self._start_due()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            keep_running()
            self._attention.look()
            self._look_for_silence()
            self._recovery.look()

    def _look_for_silence(self) -> None:
        """Kill what hangs and keep its Python stack; it then ends like any dead process."""
        for child in self._children:
            blocks = (self._telemetry_blocks[node.name] for node in child.group.nodes)
            snapshots = [NodeTelemetry(block.memory).snapshot() for block in blocks]
            silent = silent_seconds(snapshots, child.started, self._attention)
            if silent > self._options.hang_seconds and child.is_alive():
                self.notes.append(
                    f"{child.group.name} was silent for {silent:.0f} s\n{child.stack()}"
                )
                child.kill()

    def _unsaved(self) -> list[Unsaved]:
        """Who could not hand over its state since the last call, and why."""
        found = []
        for child in self._children:
            child.read()
            found += child.unsaved
            child.unsaved = []
        return found

    def _ended(self, child: Child) -> None:
        child.end_descendants()
        failure = child.failure()
        if failure is not None:
            raise failure
        cause = child.cause_of_death()
        policy = self._policies.setdefault(child.group.name, RestartPolicy())
        delay = policy.next_delay() if is_restartable(child.group) else None
        if delay is None:
            raise NodeFailure(child.group.name, f"its process ended with {cause}")
        self.notes.append(f"{child.group.name} ended with {cause} and is restarted")
        self._recovery.died(child.holder)
        self._children.remove(child)
        child.close()
        self._waiting.append((time.monotonic() + delay, child))
        self._start_due()

    def _start_due(self) -> None:
        for due in [entry for entry in self._waiting if entry[0] <= time.monotonic()]:
            self._waiting.remove(due)
            child = due[1]
            self._children.append(self._launch(child.group, child.holder, child.incarnation + 1))
            self.restarts += 1
            self.restarted[child.group.name] += 1

    def pause(self) -> None:
        self._control.memory[1] = 1

    def snapshots(self) -> list[NodeSnapshot]:
        blocks = (self._telemetry_blocks[node.name] for node in self._topology.nodes)
        return [NodeTelemetry(block.memory).snapshot() for block in blocks]

    def take_spans(self) -> dict[str, Spans]:
        blocks = self._telemetry_blocks.items()
        return {name: NodeTelemetry(block.memory).take_spans() for name, block in blocks}

    def process_ids(self) -> dict[str, int]:
        """Group name -> process id, for fault tests and profilers."""
        return {child.group.name: child.process_id for child in self._children}

    def stop(self) -> None:
        self._control.memory[0] = 1
        for doorbell in self._fabric.doorbells.values():
            doorbell.ring()
        deadline = time.monotonic() + _GRACE_SECONDS
        while left := [child.end for child in self._children if child.is_alive()]:
            if not connection.wait(left, timeout=max(0.0, deadline - time.monotonic())):
                break
        for child in self._children:
            child.kill()  # it had its grace; SIGTERM would wait for Python code to run
            child.close()
        self._children = []
        if self.run_dir is not None:
            shutil.rmtree(exchange_directory(self.run_dir), ignore_errors=True)
        self._release_memory()

    def _release_memory(self) -> None:
        self._fabric.close()
        for block in self._telemetry_blocks.values():
            block.close()
        self._control.close()


def _uses_gpu(group: Group) -> bool:
    return any(node.role.device() != "cpu" for node in group.nodes)
