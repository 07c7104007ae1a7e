# SPDX-License-Identifier: Apache-2.0
"""Trajectories as fixed blocks of rows, chained where one continues another.

Row T of a trajectory is row 0 of the next one of the same actor, so a block keeps T rows. Row T rests
in a tail of its own until the next block brings it; a chain that ends keeps its tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veldt.errors import ConfigurationError
from veldt.replay.frame_stacks import FrameStacks
from veldt.types import (
    ACTION_MASK,
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    Layout,
)

FREE = -1


@dataclass
class Stream:
    """The newest block of one actor."""

    incarnation: int
    sequence: int
    slot: int
    uid: int


class BlockStore:
    """Rows of all blocks, entry by entry: entry (slot * T + t) * E + e is one row of one environment.

    Behind the blocks lie tails of E entries each and spare single entries (an episode's last
    observation, frames that nothing continues). Memory is reserved in full, but pages that no entry
    has used take no room. Observation leaves are read with `gather`, other fields through `arrays`."""

    def __init__(
        self, layout: Layout, capacity: int, fields: Sequence[str], frame_stack: int = 1
    ) -> None:
        rows, self.num_envs = layout["reward"].shape[:2]
        self.num_steps = rows - 1
        self.block_size = self.num_steps * self.num_envs
        self.num_blocks = capacity // self.block_size
        if self.num_blocks < 2:
            raise ConfigurationError(
                f"a replay of {capacity:,} transitions has no room for two trajectories of"
                f" {self.block_size:,}; raise the capacity or shorten the trajectories"
            )
        self.leaves = [
            name
            for name in layout
            if name == ACTION_MASK or name.split(".")[0] == "observation"
        ]
        self.final_leaves = [name for name in self.leaves if "final_" + name in layout]
        self.num_items = self.num_blocks * self.block_size
        self.first_tail = self.num_items
        self.first_spare = self.first_tail + self.num_blocks * self.num_envs
        self.num_spares = max(self.num_items // 8, 64)
        num_entries = self.first_spare + self.num_spares + 1
        self.arrays: dict[str, np.ndarray] = {}
        self.stacks: dict[str, FrameStacks] = {}
        for name in [*self.leaves, *fields]:
            shape, dtype = layout[name].shape[2:], layout[name].dtype
            if frame_stack > 1 and name in self.leaves and dtype == "uint8" and len(shape) >= 3:
                stack = FrameStacks(name, shape, dtype, frame_stack, num_entries)
                self.stacks[name] = stack
            else:
                self.arrays[name] = np.zeros((num_entries, *shape), dtype)
        self.versions = np.zeros((self.num_blocks, self.num_steps), np.int64)
        self.live = np.zeros(num_entries, bool)
        self.live[-1] = True  # the blank frame
        self.uid = np.full(self.num_blocks, FREE)
        self.following = np.full(self.num_blocks, FREE)
        self.preceding = np.full(self.num_blocks, FREE)
        self.tail = np.full(self.num_blocks, FREE)
        self.streams: dict[int, Stream] = {}
        self.blocks_added = 0
        self.order: deque[tuple[int, int]] = deque()
        """(slot, uid) from oldest to newest; evicted ones are skipped when met."""
        self.dropped = {"old_incarnation": 0, "repeated": 0, "no_spare_entry": 0}
        self.gaps = 0
        self._free_slots = list(range(self.num_blocks - 1, -1, -1))
        self._free_tails = list(range(self.num_blocks - 1, -1, -1))
        self._free_spares = list(range(self.first_spare + self.num_spares - 1, self.first_spare - 1, -1))
        self._spares_of: dict[int, list[int]] = {}
        self._columns = np.arange(self.num_envs)

    @property
    def is_full(self) -> bool:
        return not self._free_slots

    def accepts(self, trajectory: dict[str, np.ndarray]) -> bool:
        """False, and counted, for what an older incarnation sent late or what came twice."""
        provenance = trajectory["provenance"].reshape(-1)
        stream = self.streams.get(int(provenance[PROVENANCE_ACTOR]))
        if stream is None or provenance[PROVENANCE_INCARNATION] > stream.incarnation:
            return True
        if provenance[PROVENANCE_INCARNATION] < stream.incarnation:
            self.dropped["old_incarnation"] += 1
            return False
        if provenance[PROVENANCE_SEQUENCE] <= stream.sequence:
            self.dropped["repeated"] += 1
            return False
        return True

    def predecessor(self, trajectory: dict[str, np.ndarray]) -> int:
        """The slot that this trajectory continues, or FREE."""
        provenance = trajectory["provenance"].reshape(-1)
        stream = self.streams.get(int(provenance[PROVENANCE_ACTOR]))
        if (
            stream is None
            or self.uid[stream.slot] != stream.uid
            or provenance[PROVENANCE_INCARNATION] != stream.incarnation
            or provenance[PROVENANCE_SEQUENCE] != stream.sequence + 1
            or not self._same_row(trajectory, stream.slot)
        ):
            return FREE
        return stream.slot

    def _same_row(self, trajectory: dict[str, np.ndarray], slot: int) -> bool:
        """Whether row 0 is the row kept in the tail; numbers alone do not prove it."""
        tail = self.tail_entries(slot)
        span = slice(tail[0], tail[0] + self.num_envs)
        for name in self.leaves:
            row = np.ascontiguousarray(trajectory[name][0])
            if name in self.stacks:
                kept = self.stacks[name].frames[span]
                row = row.reshape(self.num_envs, -1)[:, -kept.shape[1] :]
            else:
                kept = self.arrays[name][span]
            if row.tobytes() != kept.tobytes():
                return False
        return True

    def tail_entries(self, slot: int) -> np.ndarray:
        """Entries [E] of the row behind a block: its tail, or row 0 of the block that follows."""
        if self.tail[slot] != FREE:
            return self.first_tail + self.tail[slot] * self.num_envs + self._columns
        return self.following[slot] * self.block_size + self._columns

    def put(self, trajectory: dict[str, np.ndarray], previous: int) -> int:
        """Copy a trajectory into a free slot and chain it to `previous`; the slot."""
        slot, tail = self._free_slots.pop(), self._free_tails.pop()
        uid, self.blocks_added = self.blocks_added, self.blocks_added + 1
        self.uid[slot], self.tail[slot] = uid, tail
        self.following[slot], self.preceding[slot] = FREE, previous
        self.order.append((slot, uid))
        begin, behind = slot * self.block_size, self.first_tail + tail * self.num_envs
        end = begin + self.block_size
        for name, array in self.arrays.items():
            rows = trajectory[name]
            array[begin:end].reshape(rows[:-1].shape)[:] = rows[:-1]
            array[behind : behind + self.num_envs] = rows[-1]
        self.live[begin:end] = True
        self.live[behind : behind + self.num_envs] = True
        version = trajectory["parameter_version"]
        self.versions[slot] = version.reshape(len(version), -1)[:-1, 0]
        if self.stacks:
            self._put_stacks(trajectory, slot, previous)
        if previous != FREE:
            self._free_tail(previous)
            self.following[previous] = slot
        provenance = trajectory["provenance"].reshape(-1)
        self.streams[int(provenance[PROVENANCE_ACTOR])] = Stream(
            int(provenance[PROVENANCE_INCARNATION]), int(provenance[PROVENANCE_SEQUENCE]), slot, uid
        )
        self.gaps += previous == FREE
        return slot

    def _put_stacks(self, trajectory: dict[str, np.ndarray], slot: int, previous: int) -> None:
        block = np.arange(slot * self.block_size, (slot + 1) * self.block_size)
        rows = block.reshape(self.num_steps, self.num_envs)
        entries = np.concatenate([rows, self.tail_entries(slot)[None]])
        before = self.tail_entries(previous) if previous != FREE else None
        for name, stack in self.stacks.items():
            lost = stack.put(trajectory[name], entries, before, lambda: self.spare(slot))
            for damaged in lost:
                self.live[damaged] = False

    def put_final(self, trajectory: dict[str, np.ndarray], slot: int, row: int, env: int) -> int:
        """Keep the last observation of an episode that ended at `row`; its entry, or FREE if lost."""
        entry = self.spare(slot)
        if entry is None:
            return FREE
        for name in self.leaves:
            if name not in self.final_leaves:
                self.arrays[name][entry] = True  # no mask is known there: all actions are open
            elif name in self.arrays:
                self.arrays[name][entry] = trajectory["final_" + name][row, env]
            elif not self.stacks[name].put_single(
                trajectory["final_" + name][row, env], entry, lambda: self.spare(slot)
            ):
                self.live[entry] = False
                return FREE
        return entry

    def spare(self, slot: int) -> int | None:
        """One more entry that lives as long as the block in `slot`, or None, counted."""
        if not self._free_spares:
            self.dropped["no_spare_entry"] += 1
            return None
        entry = self._free_spares.pop()
        self._spares_of.setdefault(slot, []).append(entry)
        self.live[entry] = True
        return entry

    def _free_tail(self, slot: int) -> None:
        if self.tail[slot] != FREE:
            self.live[self.tail_entries(slot)] = False
            self._free_tails.append(int(self.tail[slot]))
            self.tail[slot] = FREE

    def oldest(self) -> int:
        while self.uid[self.order[0][0]] != self.order[0][1]:
            self.order.popleft()
        return self.order[0][0]

    def evict(self, slot: int) -> None:
        """Free a block with its tail and spares, and cut it out of its chain."""
        self._free_tail(slot)
        self.live[slot * self.block_size : (slot + 1) * self.block_size] = False
        spares = self._spares_of.pop(slot, [])
        self.live[spares] = False
        self._free_spares.extend(reversed(spares))
        for near, link in ((self.preceding, self.following), (self.following, self.preceding)):
            if near[slot] != FREE:
                link[near[slot]] = FREE
        self.following[slot] = self.preceding[slot] = self.uid[slot] = FREE
        self._free_slots.append(slot)

    def intact(self, entries: np.ndarray) -> np.ndarray:
        """Whether these entries, and all frames of their stacks, are still there."""
        whole = self.live[entries]
        for stack in self.stacks.values():
            whole &= stack.intact(entries, self.live)
        return whole

    def gather(self, name: str, entries: np.ndarray, out: np.ndarray) -> None:
        """Copy a field of `entries` into `out` [len(entries), ...], which must be contiguous."""
        if name in self.stacks:
            self.stacks[name].gather(entries, out)
        else:
            np.take(self.arrays[name], entries, axis=0, out=out, mode="clip")
