# SPDX-License-Identifier: Apache-2.0
"""The code of a node process: builds its roles, runs them, reports what they raise, and dies with
its parent."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from veldt.backends.base import (
    BetweenSteps,
    NodeFailure,
    RunningNode,
    close_all,
    construct,
    run_in_threads,
    run_until_stopped,
)
from veldt.backends.saving import exchange_directory, restore_role, save_for_supervisor
from veldt.backends.shared_memory.fabric import Fabric
from veldt.backends.shared_memory.memory import Descriptor, SharedBlock
from veldt.backends.shared_memory.sent import SentFabric
from veldt.backends.tuning import keep_freed_memory
from veldt.checkpoints.store import CheckpointError, read_part
from veldt.context import NodeContext
from veldt.environments.processes import die_with, ignore_signals, lead_group
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Node

_REPORT_BYTES = 60_000  # below a pipe's capacity, so that reporting never blocks
_CAUSE_LENGTH = 500


@dataclass
class Launch:
    """All a node process is given."""

    nodes: list[Node]
    threads: bool
    fabric: Fabric | SentFabric
    telemetry: dict[str, SharedBlock]
    control: SharedBlock
    holder: int
    seed: int
    incarnation: int
    run_dir: Path | None
    checkpoint: Path | None
    """Where this group continues from, if anywhere."""
    checkpoint_number: int
    """The last checkpoint that this group need not answer for."""
    lifeline: Descriptor = field(default_factory=lambda: Descriptor(-1))
    errors: Descriptor = field(default_factory=lambda: Descriptor(-1))


def run_group(launch: Launch) -> None:
    """Entry point of a node process."""
    lead_group()  # what environments start can then be ended with this process
    ignore_signals()
    _die_with_parent(launch.lifeline.fd)
    os.dup2(2, 1)  # standard output is the run's: an environment that prints must not spoil JSON
    # The supervisor asks a silent process for its stack before it replaces it.
    faulthandler.register(signal.SIGUSR1, file=launch.errors.fd, all_threads=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    os.nice(min(node.role.niceness for node in launch.nodes))
    try:
        sent = launch.fabric
        fabric = sent.open() if isinstance(sent, SentFabric) else sent
        nodes = [_construct(launch, fabric, node) for node in launch.nodes]
        _run(launch, fabric, nodes)
        close_all(nodes)
    except NodeFailure as failure:
        _report(launch.errors.fd, failure)
        os._exit(1)
    # Nothing below this process needs an orderly interpreter exit, and torch's takes a while.
    os._exit(0)


def _construct(launch: Launch, fabric: Fabric, node: Node) -> RunningNode:
    telemetry = NodeTelemetry(launch.telemetry[node.name].memory)
    context = NodeContext(
        node.name,
        node.index,
        launch.seed,
        telemetry,
        launch.incarnation,
        launch.run_dir,
        wake=fabric.doorbells[node.name].ring,
    )
    running = construct(node, context, lambda user, end: fabric.open(user, end, launch.holder))
    if launch.checkpoint is not None:
        restore_role(running, read_part(launch.checkpoint, node.name))
    return running


def _run(launch: Launch, fabric: Fabric, nodes: list[RunningNode]) -> None:
    control = launch.control.memory
    bells = fabric.doorbells

    def stopped() -> bool:
        return control[0] != 0

    def paused() -> bool:
        return control[1] != 0

    def saver() -> BetweenSteps:
        return SaveOnRequest(launch)

    if launch.threads:
        run_in_threads(nodes, bells, stopped, saver, paused)
    else:
        run_until_stopped(nodes, bells[nodes[0].name], stopped, saver(), paused)


class SaveOnRequest:
    """Writes the nodes' parts when the supervisor has raised the number of the checkpoint. A part
    that cannot be written costs the checkpoint and not the node; the supervisor is told why."""

    def __init__(self, launch: Launch) -> None:
        self._numbers = launch.control.memory[8:16].cast("q")
        run_dir = launch.run_dir
        self._directory = exchange_directory(run_dir) if run_dir is not None else None
        self._seen, self._errors = launch.checkpoint_number, launch.errors.fd

    def __call__(self, nodes: list[RunningNode]) -> None:
        number = self._numbers[0]
        if number == self._seen or self._directory is None:
            return
        self._seen = number
        for node in nodes:
            try:
                save_for_supervisor(self._directory, number, node)
            except CheckpointError as error:
                cause = str(error)[:_CAUSE_LENGTH]
                _tell(self._errors, {"number": number, "node": node.name, "cause": cause})


def _die_with_parent(lifeline: int) -> None:
    if die_with(lifeline):
        return

    def wait_for_end() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _report(errors: int, failure: NodeFailure) -> None:
    report = {"node": failure.node, "cause": failure.cause[:2000], "trace": failure.trace}
    while len(json.dumps(report).encode()) > _REPORT_BYTES:
        report["trace"] = report["trace"][len(report["trace"]) // 2 :]  # its end says most
    _tell(errors, report)


def _tell(errors: int, report: dict[str, Any]) -> None:
    """One line that never blocks: a supervisor that has not read for so long is told no more."""
    os.set_blocking(errors, False)
    with contextlib.suppress(BlockingIOError):
        os.write(errors, json.dumps(report).encode() + b"\n")
