# SPDX-License-Identifier: Apache-2.0
"""One process per group of nodes over shared memory: the default on one machine.

The supervisor only watches its node processes: no data and no weights pass through it.
"""

from __future__ import annotations

import shutil
import time
from multiprocessing import connection
from pathlib import Path

import numpy as np

from veldt.backends.base import (
    DEFAULTS,
    BackendOptions,
    LocalBackend,
    NodeFailure,
    is_restartable,
    wakers_of,
)
from veldt.backends.checkpoint_parts import CHANNELS, Parts, captured_channels, part_of_absent
from veldt.backends.process.node_process import Launch, NodeProcess, exchange_directory, part_path
from veldt.backends.shared_memory.fabric import Fabric, descriptors_of
from veldt.backends.shared_memory.memory import Block
from veldt.backends.supervision import Recovery, RestartPolicy, heartbeats, silent_seconds
from veldt.checkpoints.store import CheckpointError, read_part
from veldt.resources import require_descriptors
from veldt.topology import Group, Topology

_CHECK_SECONDS = 0.5
_LONGEST_GAP_SECONDS = 5.0
_CAPTURE_SECONDS = 60.0


class ProcessBackend(LocalBackend):
    """Starts, watches, restarts and stops the processes of a topology."""

    _between_processes = True

    def __init__(self, topology: Topology, seed: int, options: BackendOptions = DEFAULTS) -> None:
        require_descriptors(descriptors_of(topology))
        self._groups = topology.groups()
        super().__init__(topology, seed, options)
        self._control = Block(16, "veldt-control", between_processes=True)
        self._processes: list[NodeProcess] = []
        self._restarting: list[tuple[float, NodeProcess]] = []
        """Dead processes and the time of their restart."""
        self._policies: dict[str, RestartPolicy] = {}
        self._last_check, self._watched_since = time.monotonic(), 0.0

    def _build_fabric(self) -> Fabric:
        fabric = super()._build_fabric()
        for group in self._groups:
            fabric.wakers.update(wakers_of(group))
        self._recovery = Recovery(fabric)
        return fabric

    def start(self) -> None:
        for holder, group in enumerate(self._groups, start=1):
            self._processes.append(self._launch(group, holder, self._generation))

    def _launch(self, group: Group, holder: int, incarnation: int) -> NodeProcess:
        launch = Launch(
            group=group,
            fabric=self._fabric.part_for(group.nodes),
            telemetry={node.name: self._telemetry[node.name] for node in group.nodes},
            control=self._control,
            holder=holder,
            seed=self._seed,
            incarnation=incarnation,
            run_dir=self.run_dir,
            checkpoint=self._checkpoint,
        )
        return NodeProcess(launch)

    def advance(self, seconds: float) -> None:
        connection.wait([process.end for process in self._processes], timeout=seconds)
        for process in list(self._processes):
            if not process.is_alive():
                self._ended(process)
        self._restart_due()
        now = time.monotonic()
        if now - self._last_check >= _CHECK_SECONDS:
            if now - self._last_check > _LONGEST_GAP_SECONDS:
                self._watched_since = now  # the whole run was suspended, or the supervisor busy
            self._last_check = now
            self._kill_silent()
            nodes = [node.name for process in self._processes for node in process.group.nodes]
            self._recovery.check(heartbeats(self._counters(name).snapshot() for name in nodes))

    def _kill_silent(self) -> None:
        """Kill processes that hang and note their stack; they are then replaced like dead ones."""
        for process in self._processes:
            snapshots = [self._counters(node.name).snapshot() for node in process.group.nodes]
            silent = silent_seconds(snapshots, max(process.started, self._watched_since))
            if silent > self._options.hang_seconds and process.is_alive():
                self.notes.append(
                    f"{process.group.name} was silent for {silent:.0f} s\n{process.stack()}"
                )
                process.kill()

    def _ended(self, process: NodeProcess) -> None:
        process.kill()  # what its environments have left
        process.read()
        if process.failure is not None:
            raise process.failure
        name, cause = process.group.name, process.cause_of_death()
        policy = self._policies.setdefault(name, RestartPolicy())
        delay = policy.next_delay() if is_restartable(process.group) else None
        if delay is None:
            raise NodeFailure(name, f"its process ended with {cause}")
        self.notes.append(f"{name} ended with {cause} and is restarted")
        self._recovery.died(process.holder)
        self._processes.remove(process)
        process.close()
        self._restarting.append((time.monotonic() + delay, process))

    def _restart_due(self) -> None:
        for due in [entry for entry in self._restarting if entry[0] <= time.monotonic()]:
            self._restarting.remove(due)
            dead = due[1]
            self._processes.append(self._launch(dead.group, dead.holder, dead.incarnation + 1))
            self.restarted[dead.group.name] += 1

    def pause(self) -> None:
        self._control.memory[1] = 1

    def process_ids(self) -> dict[str, int]:
        return {process.group.name: process.process_id for process in self._processes}

    def restore(self, checkpoint: Path, generation: int) -> None:
        """Before the start: begin from here. During the run: restarted groups begin from here."""
        self._checkpoint = checkpoint
        if not self._processes:
            self._begin_from(checkpoint, generation)

    def capture(self, wait_seconds: float) -> ProcessCapture:
        numbers = self._control.memory[8:16].cast("q")
        numbers[0] += 1
        self._wake_all()
        return ProcessCapture(self, numbers[0], wait_seconds)

    def _wake_all(self) -> None:
        for waker in self._fabric.wakers.values():
            waker.wake()

    def stop(self, wait_seconds: float = 5.0) -> None:
        self._control.memory[0] = 1
        self._wake_all()
        deadline = time.monotonic() + wait_seconds
        while left := [process.end for process in self._processes if process.is_alive()]:
            if not connection.wait(left, timeout=max(0.0, deadline - time.monotonic())):
                break
        for process in self._processes:
            process.kill()  # SIGTERM would wait for Python code to run
            process.close()
        self._processes = []
        if self.run_dir is not None:
            shutil.rmtree(exchange_directory(self.run_dir), ignore_errors=True)
        self._fabric.close()
        for block in (*self._telemetry.values(), self._control):
            block.close()


class ProcessCapture:
    """One checkpoint, collected while the run continues.

    Every node writes its part to disk between two steps, and the supervisor joins them. If a
    dispensable node fails to, or needs longer than `wait_seconds`, its counters are taken as
    they are, and its role as in the last checkpoint."""

    def __init__(self, backend: ProcessBackend, number: int, wait_seconds: float) -> None:
        assert backend.run_dir is not None
        self._backend, self._number = backend, number
        self._directory, self._last = exchange_directory(backend.run_dir), backend._checkpoint
        self._nodes = [node.name for node in backend._topology.nodes]
        self._missing, self._absent = set(self._nodes), set[str]()
        self._dispensable = _dispensable_nodes(backend._topology)
        now = time.monotonic()
        self._wait_until = now + wait_seconds
        self._deadline = now + max(_CAPTURE_SECONDS, wait_seconds)

    def ready(self) -> bool:
        self._missing = {name for name in self._missing if not self._path(name).exists()}
        for process in self._backend._processes:
            process.read()
            for (number, name), cause in process.unsaved.items():
                if number == self._number and name in self._missing:
                    text = f"{name} could not hand over its state: {cause}"
                    if name not in self._dispensable:
                        self._fail(text)
                    self._backend.notes.append(f"{text}; the checkpoint is written without it")
                    self._missing.remove(name)
                    self._absent.add(name)
        now = time.monotonic()
        if now > self._wait_until and self._missing <= self._dispensable:
            self._absent, self._missing = self._absent | self._missing, set()
        if self._missing and now > self._deadline:
            names = ", ".join(sorted(self._missing))
            self._fail(f"{names} did not hand over their state in {_CAPTURE_SECONDS:.0f} s")
        return not self._missing

    def parts(self) -> Parts:
        """Read and verify everything, which may take a while."""
        try:
            parts = {name: self._part(name) for name in self._nodes}
            # Boards last: a resumed learner must not have older weights than its board.
            return {**parts, CHANNELS: captured_channels(self._backend._fabric)}
        finally:
            self._close()

    def _part(self, name: str) -> dict[str, np.ndarray]:
        if name not in self._absent:
            return read_part(self._path(name), name)
        last = read_part(self._last, name) if self._last is not None else {}
        return part_of_absent(self._backend._counters(name).to_bytes(), last)

    def _path(self, name: str) -> Path:
        return part_path(self._directory, self._number, name)

    def _fail(self, cause: str) -> None:
        self._close()
        raise CheckpointError(cause)

    def _close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _dispensable_nodes(topology: Topology) -> set[str]:
    """Nodes that a checkpoint can do without: actors, and those whose state is in shared memory."""
    groups = (group for group in topology.groups() if group.restartable)
    in_shared_memory = {node.name for group in groups for node in group.nodes}
    return in_shared_memory | {n.name for n in topology.nodes if topology.only_feeds([n])}
