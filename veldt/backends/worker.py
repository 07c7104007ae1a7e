# SPDX-License-Identifier: Apache-2.0
"""The code of a node process: builds its roles, runs them, reports what they raise, dies with its parent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
from dataclasses import dataclass

import torch

from veldt.backends.base import NodeFailure, RunningNode, bind, run_until_stopped, trace
from veldt.backends.fabric import Fabric
from veldt.backends.memory import Descriptor, SharedBlock
from veldt.context import NodeContext
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Node

_REPORT_BYTES = 60_000  # below a pipe's capacity, so that reporting never blocks


@dataclass
class Launch:
    """All a node process is given."""

    nodes: list[Node]
    threads: bool
    fabric: Fabric
    telemetry: dict[str, SharedBlock]
    control: SharedBlock
    lifeline: Descriptor
    errors: Descriptor
    holder: int
    seed: int
    incarnation: int


def run_group(launch: Launch) -> None:
    """Entry point of a node process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    _die_with_parent(launch.lifeline.fd)
    torch.set_num_threads(1)
    try:
        nodes = [_construct(launch, node) for node in launch.nodes]
        _run(launch, nodes)
        for node in nodes:
            close = getattr(node.role, "close", None)
            if close:
                close()
    except NodeFailure as failure:
        _report(launch.errors.fd, failure)
        os._exit(1)
    # Nothing below this process needs an orderly interpreter exit, and torch's takes a while.
    os._exit(0)


def _construct(launch: Launch, node: Node) -> RunningNode:
    telemetry = NodeTelemetry(launch.telemetry[node.name].memory)
    context = NodeContext(node.name, node.index, launch.seed, telemetry, launch.incarnation)
    try:
        ports = bind(node, lambda user, end: launch.fabric.open(user, end, launch.holder))
        return RunningNode(node, node.role(context, **ports), telemetry)
    except Exception as error:
        raise NodeFailure(node.name, f"{type(error).__name__}: {error}", trace()) from error


def _run(launch: Launch, nodes: list[RunningNode]) -> None:
    control = launch.control.memory
    bells = launch.fabric.doorbells

    def stopped() -> bool:
        return control[0] != 0

    if not launch.threads:
        run_until_stopped(nodes, bells[nodes[0].name], stopped)
        return
    failures: list[NodeFailure] = []

    def run_one(node: RunningNode) -> None:
        try:
            run_until_stopped([node], bells[node.name], lambda: stopped() or bool(failures))
        except NodeFailure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run_one, args=(node,), name=node.name) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _die_with_parent(lifeline: int) -> None:
    """Ask the kernel for a fatal signal when the supervisor's end of the pipe closes, however it
    died. It works even while Python code or an environment hangs."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if os.get_blocking(lifeline):
            os.set_blocking(lifeline, False)
        with contextlib.suppress(BlockingIOError):
            if os.read(lifeline, 1) == b"":
                os._exit(1)  # the supervisor died before the signal was armed
        return

    def wait_for_end() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _report(errors: int, failure: NodeFailure) -> None:
    report = {"node": failure.node, "cause": failure.cause[:4000], "trace": failure.trace[-40_000:]}
    os.write(errors, json.dumps(report).encode()[:_REPORT_BYTES])
