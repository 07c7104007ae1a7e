# SPDX-License-Identifier: Apache-2.0
"""What the driver and the node processes on Ray tell each other, apart from data and weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veldt.backends.ray.shared import SharedPart
from veldt.backends.shared_memory.fabric import Link
from veldt.topology import Board, Group, QueueSpec, RequestsSpec, Shared

Handle = Any
"""Ray's handle of a node process; calling one of its methods never waits."""


@dataclass
class Assignment:
    """All a node process is given."""

    group: Group
    seed: int
    incarnation: int
    verify: bool
    inbound: list[QueueSpec]
    """Queues consumed here."""
    outbound: list[QueueSpec]
    """Queues consumed elsewhere, with this group's share of the slots."""
    boards: list[Board]
    shared: list[Shared]
    requests: list[RequestsSpec]
    streams: dict[str, Link]
    telemetry: dict[str, bytes]
    """By node: the counters of the incarnation before, to go on from."""
    timeline_seconds: float
    """How far back nodes record when they did what; 0: not at all."""
    saves: set[str]
    """Boards and shared memory whose content this group puts into checkpoints."""
    run_dir: Path | None
    memory: SharedPart | None
    """All channels, where the processes share them; the five lists above are then not used."""
    parts: dict[str, dict[str, np.ndarray]]
    """By node: the state its role continues from; empty for a fresh start."""


@dataclass
class Peers:
    """Handles of other processes. A later message replaces only what it names."""

    consumers: dict[str, Handle]
    """By queue."""
    readers: dict[str, dict[str, Handle]]
    """By board, then by group."""


@dataclass
class Report:
    """What the driver wants to know now and then."""

    telemetry: dict[str, bytes]
    queue_fills: dict[str, float]
    silent_seconds: float


@dataclass
class Captured:
    """What a group puts into a checkpoint."""

    parts: dict[str, Any]
    """By node: a reference to its arrays, which went to the object store between two steps."""
    channels: dict[str, np.ndarray]
