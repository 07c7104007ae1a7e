# SPDX-License-Identifier: Apache-2.0
"""What a backend puts into a checkpoint and takes out of it: roles, counters, weights on boards.

Trajectories under way and episodes in progress are not part of it: whoever continues from a
checkpoint begins new episodes. Parts are named after nodes; CHANNELS holds what lies between them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from veldt.backends.base import RunningNode
from veldt.backends.shared_memory.fabric import Fabric
from veldt.checkpoints.store import CheckpointStore
from veldt.telemetry.counters import NodeSnapshot
from veldt.topology import SharedSpec, Topology
from veldt.types import Parameters

Parts = dict[str, dict[str, np.ndarray]]

CHANNELS, WEIGHTS, RUN = "channels", "weights", "run"
"""Parts that are no node's; the run itself adds the last two."""
_COUNTERS = "telemetry"
_ROLE = "role."


def captured_node(node: RunningNode) -> dict[str, np.ndarray]:
    """A role's state and the counters it has reached."""
    counters = np.frombuffer(node.telemetry.to_bytes(), np.uint8)
    role = {_ROLE + name: array for name, array in node.role.state().items()}
    return {_COUNTERS: counters, **role}


def part_of_absent(counters: bytes, last: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For a node that is being replaced: its counters, and its role as in the `last` checkpoint."""
    return {**last, _COUNTERS: np.frombuffer(counters, np.uint8)}


def role_state(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a node's role has saved, without its counters."""
    return {name.removeprefix(_ROLE): array for name, array in part.items() if name != _COUNTERS}


def snapshot_in(part: dict[str, np.ndarray]) -> NodeSnapshot:
    """What a node had counted."""
    return NodeSnapshot.from_bytes(part[_COUNTERS].tobytes())


def restore_role(node: RunningNode, part: dict[str, np.ndarray]) -> None:
    """Nothing happens where the role has no state, or had none when the checkpoint was made."""
    state = role_state(part)
    if state:
        node.role.load_state(state)


def restore_counters(memory: memoryview, part: dict[str, np.ndarray]) -> None:
    """Let a node's counters go on where the checkpoint was made."""
    counters = part[_COUNTERS].tobytes()
    memory[: len(counters)] = counters


def captured_boards(boards: dict[str, Parameters]) -> dict[str, np.ndarray]:
    """By board: what lies there and of which version it is."""
    arrays = {}
    for name, parameters in boards.items():
        arrays[f"board.{name}"] = parameters.vector
        arrays[f"version.{name}"] = np.array(parameters.version)
    return arrays


def captured_channels(fabric: Fabric) -> dict[str, np.ndarray]:
    """What lies on boards and in shared memory."""
    arrays = captured_boards({name: board.newest() for name, board in fabric.boards.items()})
    for name, block in fabric.shared.items():
        arrays[f"shared.{name}"] = np.frombuffer(block.memory, np.uint8).copy()
    return arrays


def with_saved_channels(topology: Topology, part: dict[str, np.ndarray]) -> Topology:
    """The topology with boards and shared memory as they were."""
    boards = [
        replace(
            board,
            initial=part[f"board.{board.spec.name}"],
            version=int(part[f"version.{board.spec.name}"]),
        )
        for board in topology.boards
    ]
    shared = [
        replace(memory, initial=_as_before(part[f"shared.{memory.spec.name}"], memory.spec))
        for memory in topology.shared
    ]
    return replace(topology, boards=boards, shared=shared)


def _as_before(memory: np.ndarray, spec: SharedSpec) -> np.ndarray:
    return memory[: spec.size * np.dtype(spec.dtype).itemsize].view(spec.dtype)


def exchange_directory(run_dir: Path) -> Path:
    """Where node processes leave their parts until the supervisor has joined them."""
    return run_dir / ".exchange"


def save_for_supervisor(directory: Path, number: int, node: RunningNode) -> None:
    """A node process hands its part over as a small checkpoint of its own. What a predecessor left
    before it died stands, since the supervisor may have seen it. Raises CheckpointError where the
    part cannot be written, and may do so once the supervisor has the last one, since it then
    removes the directory under the writer's hands."""
    if part_path(directory, number, node.name).exists():
        return
    store = CheckpointStore(directory / node.name, keep=1)
    store.save(number, {node.name: captured_node(node)}, {})


def part_path(directory: Path, number: int, name: str) -> Path:
    """Where `save_for_supervisor` leaves a node's part; it is there once it is complete."""
    return directory / name / f"checkpoint-{number:012d}"
