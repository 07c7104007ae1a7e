# SPDX-License-Identifier: Apache-2.0
"""Which fields of a trajectory a replay keeps, and what its batches look like."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from veldt.resources import require_bytes
from veldt.types import ACTION_MASK, Field, Layout


def observation_leaves(trajectories: Layout) -> list[str]:
    """What a policy sees of a row: observations and the action mask."""
    return [
        name for name in trajectories if name == ACTION_MASK or name.split(".")[0] == "observation"
    ]


def require_room(trajectories: Layout, rows: int, frame_stack: int, option: str) -> None:
    """Refuse a replay that could never be filled: each frame of a stack is kept once."""
    leaves, per_row = observation_leaves(trajectories), 0
    for name in (*leaves, "action"):
        spec = trajectories[name]
        size = prod(spec.shape[2:]) * np.dtype(spec.dtype).itemsize
        per_row += size // (frame_stack if name in leaves else 1)
    require_bytes(rows * per_row, "replay", f"lower --{option}")


def transition_layout(trajectories: Layout, batch_size: int, outputs: Sequence[str] = ()) -> Layout:
    """A batch of transitions [B, ...] cut out of `trajectories`."""
    fields: dict[str, Field] = {}
    for name in observation_leaves(trajectories):
        spec = trajectories[name]
        fields[name] = fields["next_" + name] = Field((batch_size, *spec.shape[2:]), spec.dtype)
    for name in ("action", *outputs):
        spec = trajectories[name]
        fields[name] = Field((batch_size, *spec.shape[2:]), spec.dtype)
    for name in ("reward", "discount"):
        fields[name] = Field((batch_size,), "float32")
    for name in ("parameter_version", "age", "item_id"):
        fields[name] = Field((batch_size,), "int64")
    return Layout(tuple(fields.items()))


SEQUENCE_FLAGS = ("first", "ignored", "terminated", "truncated")


def sequence_layout(
    trajectories: Layout, num_steps: int, batch_size: int, outputs: Sequence[str] = ()
) -> Layout:
    """A batch of sequences cut out of `trajectories`: rows time-major [num_steps + 1, B, ...], the
    rest [B, ...]."""
    fields: dict[str, Field] = {}
    leaves = observation_leaves(trajectories)
    finals = ["final_" + name for name in leaves if "final_" + name in trajectories]
    for name in (*leaves, *finals, "action", "reward", *SEQUENCE_FLAGS, *outputs):
        spec = trajectories[name]
        shape = (num_steps + 1, batch_size, *spec.shape[2:])
        fields[name] = Field(shape, spec.dtype, join_axis=1)
    fields["parameter_version"] = Field((num_steps + 1, batch_size), "int64", join_axis=1)
    for name, spec in trajectories.items():
        if name.startswith("state."):
            fields[name] = Field((batch_size, *spec.shape[1:]), spec.dtype)
    for name in ("age", "item_id"):
        fields[name] = Field((batch_size,), "int64")
    return Layout(tuple(fields.items()))
