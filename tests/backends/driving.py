# SPDX-License-Identifier: Apache-2.0
"""Drives a backend until something is so, and looks for what a run left behind."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from veldt.backends.base import Backend
from veldt.topology import Topology

MakeBackend = Callable[..., Backend]

PATIENCE_SECONDS = 60.0


def bare_topology() -> Topology:
    """One to add to; there is no network, as nothing here is evaluated."""
    no_network: Any = None
    return Topology(no_network)


def counter(backend: Backend, node: int, name: str) -> float:
    """A counter of the node at this place in the topology; 0 before it exists."""
    return backend.snapshots()[node].counters.get(name, 0.0)


def strike(backend: Backend, node: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process of a node whose role tells which one it is. Until it is heard of
    its number is 0, which would strike everyone here."""
    advance_until(backend, lambda: counter(backend, node, "process_id") > 0, "its process")
    os.kill(int(counter(backend, node, "process_id")), number)


def advance_until(backend: Backend, condition: Callable[[], bool], what: str) -> None:
    """Let the run go on until `condition`; fails, rather than hangs, when it never comes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        backend.advance(0.02)


def advance_for(backend: Backend, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        backend.advance(0.02)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.02)


def alive(process_id: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    return False


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def open_files() -> list[str]:
    """What the descriptors of this process point to. Socket numbers change and are left out."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}").split(":[")[0])
    return sorted(found)


def mapped_memory() -> list[str]:
    """Anonymous shared files (memfd) mapped into this process."""
    with open("/proc/self/maps") as maps:
        return sorted(line.split()[-2] for line in maps if "memfd:veldt" in line)


def shared_memory_names() -> set[str]:
    """Named segments. Semaphores come and go with other programs, and no backend has any."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
