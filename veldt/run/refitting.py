# SPDX-License-Identifier: Apache-2.0
"""A checkpoint for another number of actors than it was made with.

What nodes of a kind have counted is shared out evenly among those that are there now: schedules
that follow an actor's own steps then go on where they were. A node that is new begins with the
state of one of its kind, except for a replay, which begins empty; what a replay held that is not
there any more is lost, and named.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from veldt.backends.saving import (
    CHANNELS,
    RUN,
    WEIGHTS,
    Parts,
    part_of_absent,
    role_state,
    snapshot_in,
)
from veldt.checkpoints.store import Checkpoint
from veldt.roles.hogwild import UPDATES_SUFFIX
from veldt.telemetry.aggregate import with_nothing_seen
from veldt.telemetry.counters import NodeSnapshot, NodeTelemetry
from veldt.topology import Node, Topology

_REPLAY = "replay"
_RECURRENT = "recurrent"  # of episodes, which begin anew in any case


def refitted(checkpoint: Checkpoint, topology: Topology) -> tuple[Parts, list[str]] | None:
    """The parts for this topology, and what they lack in words; None where they fit as they are."""
    saved = [name for name in checkpoint.parts if name not in (CHANNELS, RUN, WEIGHTS)]
    now = [node.name for node in topology.nodes]
    if set(saved) == set(now):
        return None
    lacks: list[str] = []
    parts: Parts = {}
    for kind in dict.fromkeys(node.kind for node in topology.nodes):
        nodes = [node for node in topology.nodes if node.kind == kind]
        before = {name: checkpoint.load(name) for name in saved if _kind(name) == kind}
        parts |= _of_kind(nodes, before)
    gone = [name for name in saved if name not in now]
    held = [name for name in gone if role_state(checkpoint.load(name)) and _kind(name) == _REPLAY]
    if held:
        lacks.append(f"what {_listed(held)} held is lost")
    empty = [name for name in now if name not in saved and _kind(name) == _REPLAY]
    if empty:
        lacks.append(f"{_listed(empty)} begin{'s' if len(empty) == 1 else ''} empty")
    parts[CHANNELS], fresh = _channels(checkpoint, topology)
    if fresh:
        lacks.append(f"{_listed(fresh)} begin{'s' if len(fresh) == 1 else ''} anew")
    seen = [snapshot_in(parts[name]).episodes_total for name in now]
    parts[WEIGHTS] = checkpoint.load(WEIGHTS)
    window = with_nothing_seen(checkpoint.load(RUN))
    parts[RUN] = {**window, "episodes_seen": np.array(seen, np.int64)}
    return parts, lacks


def _kind(name: str) -> str:
    return name.rpartition("-")[0]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _of_kind(nodes: list[Node], before: dict[str, dict[str, np.ndarray]]) -> Parts:
    counted = [snapshot_in(part) for part in before.values()]
    states = list(before.values())
    parts: Parts = {}
    for place, node in enumerate(nodes):
        telemetry = NodeTelemetry()
        for name, value in _share(counted, place, len(nodes)).items():
            telemetry.counter(name).set(value)
        telemetry.skip_episodes(
            _whole_share(sum(one.episodes_total for one in counted), place, len(nodes))
        )
        state = before.get(node.name)
        if state is None:
            state = states[place % len(states)] if states and node.kind != _REPLAY else {}
        parts[node.name] = part_of_absent(telemetry.to_bytes(), state)
    return parts


def _share(counted: list[NodeSnapshot], place: int, among: int) -> dict[str, float]:
    """One node's part of what the nodes of its kind have counted together. Levels, which are no
    sums, are measured again."""
    names = dict.fromkeys(
        name for one in counted for name in one.counters if name not in one.gauges
    )
    totals = {name: float(sum(one.counters.get(name, 0.0) for one in counted)) for name in names}
    return {
        name: _whole_share(int(total), place, among) if total.is_integer() else total / among
        for name, total in totals.items()
    }


def _whole_share(total: int, place: int, among: int) -> int:
    return total // among + (place < total % among)


def _channels(
    checkpoint: Checkpoint, topology: Topology
) -> tuple[dict[str, np.ndarray], list[str]]:
    """What lies between nodes; that which has another size now begins anew."""
    saved = checkpoint.load(CHANNELS)
    fresh = []
    for board in topology.boards:
        key = f"board.{board.spec.name}"
        if key not in saved or saved[key].shape != board.initial.shape:
            saved[key], saved[f"version.{board.spec.name}"] = board.initial, np.array(board.version)
            fresh.append(board.spec.name)
    for memory in topology.shared:
        name, initial = memory.spec.name, memory.initial
        before = saved.get(f"shared.{name}", np.zeros(0, np.uint8))
        if name.endswith(UPDATES_SUFFIX):
            # Each worker counts in a line of its own; the first line is where a run began.
            counts = np.zeros(initial.size, np.int64)
            counts[0] = before.view(np.int64).sum()
            saved[f"shared.{name}"] = counts.view(np.uint8)
        elif before.size not in (initial.nbytes, max(initial.nbytes, 64), _pages(initial.nbytes)):
            saved[f"shared.{name}"] = np.frombuffer(initial.tobytes(), np.uint8)
            if name != _RECURRENT:
                fresh.append(name)
    return saved, fresh


def _pages(nbytes: int) -> int:
    """What shared memory of so many bytes takes at least."""
    return max(nbytes, mmap.PAGESIZE)
