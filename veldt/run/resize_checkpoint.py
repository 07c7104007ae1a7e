# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint to another number of actors than it was made with.

Counters of each kind of node are divided evenly among the nodes of that kind, so that schedules
that follow an actor's own steps continue. A new node begins with the state of another of its kind;
a new replay begins empty.
"""

from __future__ import annotations

import mmap

import numpy as np

from veldt.backends.checkpoint_parts import (
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
from veldt.telemetry.counters import NodeTelemetry
from veldt.topology import Node, Topology

_REPLAY = "replay"
_RECURRENT = "recurrent"  # state of episodes, which begin anew in any case


def resized(checkpoint: Checkpoint, topology: Topology) -> tuple[Parts, list[str]] | None:
    """The parts for this topology, and what was lost, in words; None where they fit as they are."""
    saved = [name for name in checkpoint.parts if name not in (CHANNELS, RUN, WEIGHTS)]
    now = [node.name for node in topology.nodes]
    if set(saved) == set(now):
        return None
    parts: Parts = {}
    for kind in dict.fromkeys(node.kind for node in topology.nodes):
        nodes = [node for node in topology.nodes if node.kind == kind]
        before = {name: checkpoint.load(name) for name in saved if _kind(name) == kind}
        parts |= _parts_of_kind(nodes, before)
    dropped = [name for name in saved if name not in now and _kind(name) == _REPLAY]
    lost = [
        f"the content of {name} is lost" for name in dropped if role_state(checkpoint.load(name))
    ]
    new = [name for name in now if name not in saved and _kind(name) == _REPLAY]
    lost += [f"{name} begins empty" for name in new]
    parts[CHANNELS], reset = _channels(checkpoint, topology)
    lost += [f"{name} begins anew" for name in reset]
    parts[WEIGHTS] = checkpoint.load(WEIGHTS)
    seen = [snapshot_in(parts[name]).episodes_total for name in now]
    window = with_nothing_seen(checkpoint.load(RUN))
    parts[RUN] = {**window, "episodes_seen": np.array(seen, np.int64)}
    return parts, lost


def _kind(name: str) -> str:
    return name.rpartition("-")[0]


def _parts_of_kind(nodes: list[Node], before: dict[str, dict[str, np.ndarray]]) -> Parts:
    counted = [snapshot_in(part) for part in before.values()]
    episodes = sum(one.episodes_total for one in counted)
    totals: dict[str, float] = {}
    for one in counted:
        for name in one.counters.keys() - one.gauges:  # gauges are no sums, and are measured again
            totals[name] = totals.get(name, 0.0) + one.counters[name]
    states = list(before.values())
    parts: Parts = {}
    for place, node in enumerate(nodes):
        telemetry = NodeTelemetry()
        for name in sorted(totals):
            telemetry.counter(name).set(_share(totals[name], place, len(nodes)))
        telemetry.skip_episodes(int(_share(episodes, place, len(nodes))))
        state = before.get(node.name)
        if state is None:
            state = states[place % len(states)] if states and node.kind != _REPLAY else {}
        parts[node.name] = part_of_absent(telemetry.to_bytes(), state)
    return parts


def _share(total: float, place: int, among: int) -> float:
    """The part of a total that the node at `place` gets; whole numbers are divided into such."""
    if not float(total).is_integer():
        return total / among
    return int(total) // among + (place < int(total) % among)


def _channels(
    checkpoint: Checkpoint, topology: Topology
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Boards and shared memory; those of another size than saved begin anew."""
    saved, reset = checkpoint.load(CHANNELS), []
    for board in topology.boards:
        key = f"board.{board.spec.name}"
        if key not in saved or saved[key].shape != board.initial.shape:
            saved[key], saved[f"version.{board.spec.name}"] = board.initial, np.array(board.version)
            reset.append(board.spec.name)
    for memory in topology.shared:
        name, initial = memory.spec.name, memory.initial
        before = saved.get(f"shared.{name}", np.zeros(0, np.uint8))
        # Shared memory may be larger than asked for.
        sizes = (initial.nbytes, max(initial.nbytes, 64), max(initial.nbytes, mmap.PAGESIZE))
        if name.endswith(UPDATES_SUFFIX):
            # Each worker counts in an entry of its own; the first is where the run began.
            counts = np.zeros(initial.size, np.int64)
            counts[0] = before.view(np.int64).sum()
            saved[f"shared.{name}"] = counts.view(np.uint8)
        elif before.size not in sizes:
            saved[f"shared.{name}"] = np.frombuffer(initial.tobytes(), np.uint8)
            if name != _RECURRENT:
                reset.append(name)
    return saved, reset
