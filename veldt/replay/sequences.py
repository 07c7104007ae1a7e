# SPDX-License-Identifier: Apache-2.0
"""Fixed-length sequences with the recurrent state they began with (R2D2), rows shared by overlaps.

A sequence begins where a trajectory begins, since only there is the state known, and runs through
the trajectories that follow. Its item is (block, environment).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veldt.errors import ConfigurationError
from veldt.replay.blocks import FREE, observation_leaves
from veldt.replay.items import NOTHING, ItemStore
from veldt.types import Field, Layout

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


class SequenceStore(ItemStore):
    """Sequences of `burn_in` + `unroll` steps and one bootstrap row, starting every `unroll` steps.

    So only the burn-in overlaps. `unroll` is a multiple of the trajectory length. Sequences
    continue across the ends of episodes; `first` marks where the state is reset. `capacity` counts
    rows of single environments, as in a TransitionStore."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        *,
        burn_in: int,
        unroll: int,
        frame_stack: int = 1,
        outputs: Sequence[str] = (),
    ) -> None:
        fields = ("action", "reward", *SEQUENCE_FLAGS, *outputs)
        super().__init__(layout, capacity, fields, frame_stack, per_row=False)
        self.burn_in, self.unroll, self.length = burn_in, unroll, burn_in + unroll
        steps, num_blocks = self.blocks.num_steps, self.blocks.num_blocks
        self._blocks_per_period = unroll // steps
        self._blocks_per_item = -(-self.length // steps)
        if self._blocks_per_item >= num_blocks:
            raise ConfigurationError(
                f"one sequence needs {self._blocks_per_item} trajectories, and the replay has room"
                f" for {num_blocks}; raise the capacity"
            )
        self._layout, self._fields, self._outputs = layout, fields, tuple(outputs)
        self._position = np.zeros(num_blocks, np.int64)
        """How many blocks of its chain came before each block."""
        self._final = np.full(self.blocks.num_items, FREE, np.int32)
        self._states = {
            name: np.zeros((num_blocks, *spec.shape), spec.dtype)
            for name, spec in layout.items()
            if name.startswith("state.")
        }

    def _take_in(self, trajectory: dict[str, np.ndarray], previous: int) -> np.ndarray:
        blocks = self.blocks
        slot = blocks.put(trajectory, previous)
        self._position[slot] = 0 if previous == FREE else self._position[previous] + 1
        for name, state in self._states.items():
            state[slot] = trajectory[name]
        begin = slot * blocks.block_size
        self._final[begin : begin + blocks.block_size] = blocks.put_finals(trajectory, slot).ravel()
        before = blocks.walk(blocks.preceding, slot, (self._blocks_per_item - 1) * blocks.num_steps)
        if len(before) < self._blocks_per_item - 1:
            return NOTHING
        start = before[-1] if before else slot
        if self._position[start] % self._blocks_per_period:
            return NOTHING
        items = np.arange(start * blocks.num_envs, (start + 1) * blocks.num_envs)
        items = items[self._are_whole(items)]
        self._inserted_at[start] = self.num_inserted
        self._insert(items)
        return items

    def _are_whole(self, items: np.ndarray) -> np.ndarray:
        """Whether every row of these sequences can be rebuilt."""
        entries = self.entries(items)
        whole = self.blocks.whole[entries].all(axis=0)
        if self.blocks.final_leaves:
            arrays, rows = self.blocks.arrays, entries[:-1]
            lost = arrays["truncated"][rows] & ~arrays["terminated"][rows]
            whole &= ~(lost & (self._final[rows] == FREE)).any(axis=0)
        return whole

    def entries(self, items: np.ndarray) -> np.ndarray:
        """Entries of all rows of each sequence, [length + 1, len(items)]."""
        blocks = self.blocks
        slots, env = np.divmod(items, blocks.num_envs)
        offsets = (np.arange(blocks.num_steps) * blocks.num_envs)[:, None]
        parts = []
        for number in range(self._blocks_per_item):
            slots = slots if number == 0 else blocks.following[slots]
            parts.append(slots * blocks.block_size + env + offsets)
        tails = blocks.first_tail + blocks.tail[slots] * blocks.num_envs + env
        moved = blocks.following[slots] * blocks.block_size + env
        parts.append(np.where(blocks.tail[slots] == FREE, moved, tails)[None])
        return np.concatenate(parts)[: self.length + 1]

    def _item_arrays(self) -> dict[str, np.ndarray]:
        used = self.blocks.slots.touched
        arrays = super()._item_arrays()
        arrays["position"] = self._position[:used]
        arrays["final"] = self._final[: used * self.blocks.block_size]
        arrays.update((name, state[:used]) for name, state in self._states.items())
        return arrays

    def batch_layout(self, batch_size: int) -> Layout:
        """What `sample` writes: rows time-major [length + 1, B, ...], the rest [B, ...]."""
        return sequence_layout(self._layout, self.length, batch_size, self._outputs)

    def _copy(self, indices: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """The last row only bootstraps: but for its observation and `first`, all of it is 0."""
        blocks, entries = self.blocks, self.entries(indices)
        flat = entries.reshape(-1)
        for name in (*blocks.leaves, *self._fields):
            field = out[name]
            blocks.gather(name, flat, field.reshape(flat.size, *field.shape[2:]))
            if name in self._fields and name != "first":
                field[-1] = 0
        self._write_finals(entries, out)
        versions, rows = blocks.versions.reshape(-1), entries[:-1] // blocks.num_envs
        np.take(versions, rows, out=out["parameter_version"][:-1], mode="clip")
        out["parameter_version"][-1] = out["parameter_version"][-2]
        slots, envs = np.divmod(indices, blocks.num_envs)
        for name, state in self._states.items():
            out[name][:] = state[slots, envs]

    def _write_finals(self, entries: np.ndarray, out: dict[str, np.ndarray]) -> None:
        if not self.blocks.final_leaves:
            return
        final = np.full(entries.shape, FREE)
        final[:-1] = self._final[entries[:-1]]
        present = final != FREE
        for name in self.blocks.final_leaves:
            field = out["final_" + name]
            field[:] = 0
            found = np.empty((int(present.sum()), *field.shape[2:]), field.dtype)
            self.blocks.gather(name, final[present], found)
            field[present] = found
