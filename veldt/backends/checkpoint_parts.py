# SPDX-License-Identifier: Apache-2.0
"""What a backend saves in a checkpoint and restores from it: roles, counters, weights on boards.

Trajectories in flight and episodes in progress are not part of it: a resumed run begins new
episodes. Parts are named after nodes; CHANNELS holds boards and shared memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from veldt.backends.shared_memory.fabric import Fabric
from veldt.role import Role
from veldt.topology import Topology
from veldt.types import Parameters

if TYPE_CHECKING:
    from veldt.backends.base import RunningNode

Parts = dict[str, dict[str, np.ndarray]]

CHANNELS, WEIGHTS, RUN = "channels", "weights", "run"
"""Parts that belong to no node; the run itself adds the last two."""
_COUNTERS = "telemetry"
_ROLE = "role."


def captured_node(node: RunningNode) -> dict[str, np.ndarray]:
    """A role's state and its node's counters."""
    counters = np.frombuffer(node.telemetry.to_bytes(), np.uint8)
    role = {_ROLE + name: array for name, array in node.role.state().items()}
    return {_COUNTERS: counters, **role}


def part_of_absent(counters: bytes, last: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For a node that is being replaced: its counters, and its role as in the `last` checkpoint."""
    return {**last, _COUNTERS: np.frombuffer(counters, np.uint8)}


def restore_role(role: Role, part: dict[str, np.ndarray]) -> None:
    """Load a role's state, if it saved any."""
    state = {name.removeprefix(_ROLE): array for name, array in part.items() if name != _COUNTERS}
    if state:
        role.load_state(state)


def restore_counters(memory: memoryview, part: dict[str, np.ndarray]) -> None:
    """Set a node's counters to those of the checkpoint."""
    counters = part[_COUNTERS].tobytes()
    memory[: len(counters)] = counters


def captured_boards(boards: dict[str, Parameters]) -> dict[str, np.ndarray]:
    """The vector and version of each board."""
    arrays = {}
    for name, parameters in boards.items():
        arrays[f"board.{name}"] = parameters.vector
        arrays[f"version.{name}"] = np.array(parameters.version)
    return arrays


def captured_channels(fabric: Fabric) -> dict[str, np.ndarray]:
    """The content of boards and shared memory."""
    arrays = captured_boards({name: board.newest() for name, board in fabric.boards.items()})
    for name, block in fabric.shared.items():
        arrays[f"shared.{name}"] = np.frombuffer(block.memory, np.uint8).copy()
    return arrays


def with_saved_channels(topology: Topology, part: dict[str, np.ndarray]) -> Topology:
    """The topology with the saved content of boards and shared memory."""
    boards = [
        replace(
            board,
            initial=part[f"board.{board.spec.name}"],
            version=int(part[f"version.{board.spec.name}"]),
        )
        for board in topology.boards
    ]
    shared = []
    for memory in topology.shared:
        name, dtype, size = memory.spec.name, np.dtype(memory.spec.dtype), memory.spec.size
        initial = part[f"shared.{name}"][: size * dtype.itemsize].view(dtype)
        shared.append(replace(memory, initial=initial))
    return replace(topology, boards=boards, shared=shared)
