# SPDX-License-Identifier: Apache-2.0
"""Trajectories as fixed blocks of rows, chained where one continues another.

Row T of a trajectory is row 0 of the next one of the same actor, so a block keeps T rows. Row T
rests in a tail of its own until the next block brings it; a chain that ends keeps its tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veldt.errors import ConfigurationError
from veldt.replay.frame_stacks import FrameStacks
from veldt.replay.layouts import observation_leaves
from veldt.replay.pool import Pool
from veldt.resources import require_bytes
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


def origin(trajectory: dict[str, np.ndarray]) -> tuple[int, int, int]:
    """Which actor sent a trajectory, in which incarnation, and its number there."""
    provenance = trajectory["provenance"].reshape(-1)
    places = (PROVENANCE_ACTOR, PROVENANCE_INCARNATION, PROVENANCE_SEQUENCE)
    actor, incarnation, sequence = (int(provenance[place]) for place in places)
    return actor, incarnation, sequence


class BlockStore:
    """Rows of all blocks: entry (slot * T + t) * E + e is row t of environment e.

    Behind the blocks lie tails of E entries each and spare single entries (an episode's last
    observation, frames that nothing continues). Memory is reserved in full, but pages that no entry
    has used take no room. Read observation leaves with `gather`, other fields through `arrays`."""

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
        self.leaves = observation_leaves(layout)
        self.final_leaves = [name for name in self.leaves if "final_" + name in layout]
        self.num_items = self.num_blocks * self.block_size
        self.first_tail = self.num_items
        self.first_spare = self.first_tail + self.num_blocks * self.num_envs
        self.num_spares = self.num_items // 2
        num_entries = self.first_spare + self.num_spares + 1
        self.arrays: dict[str, np.ndarray] = {}
        self.stacks: dict[str, FrameStacks] = {}
        self._require_memory(layout, [*self.leaves, *fields], frame_stack)
        for name in [*self.leaves, *fields]:
            shape, dtype = layout[name].shape[2:], layout[name].dtype
            if frame_stack > 1 and name in self.leaves and dtype == "uint8" and len(shape) >= 3:
                stack = FrameStacks(name, shape, dtype, frame_stack, num_entries)
                self.stacks[name] = stack
            else:
                self.arrays[name] = np.zeros((num_entries, *shape), dtype)
        self.versions = np.zeros((self.num_blocks, self.num_steps), np.int64)
        self.live = np.zeros(num_entries, bool)
        """What lies there is in use."""
        self.live[-1] = True  # the blank frame
        self.whole = np.zeros(num_entries, bool)
        """Nothing of it is lost: the older frames of its stack are there too."""
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
        self.slots = Pool(self.num_blocks)
        self.tails = Pool(self.num_blocks)
        self.spares = Pool(self.num_spares)
        self.spares_of: dict[int, list[int]] = {}
        self.tail_spares_of: dict[int, list[int]] = {}
        self._frame_rows = frame_stack - 1 if self.stacks else 0
        self._columns = np.arange(self.num_envs)

    def _require_memory(self, layout: Layout, names: list[str], frame_stack: int) -> None:
        """Ask for what a full replay touches for certain; pages of spare entries may stay empty."""
        per_item = 0
        for name in names:
            size = int(np.prod(layout[name].shape[2:])) * np.dtype(layout[name].dtype).itemsize
            per_item += size // (frame_stack if name in self.leaves else 1)
        require_bytes(self.num_items * per_item, "replay", "lower --replay-transitions")

    def accepts(self, trajectory: dict[str, np.ndarray]) -> bool:
        """False, and counted, for what an older incarnation sent late or what came twice."""
        actor, incarnation, sequence = origin(trajectory)
        stream = self.streams.get(actor)
        if stream is None or incarnation > stream.incarnation:
            return True
        if incarnation < stream.incarnation:
            self.dropped["old_incarnation"] += 1
            return False
        if sequence <= stream.sequence:
            self.dropped["repeated"] += 1
            return False
        return True

    def predecessor(self, trajectory: dict[str, np.ndarray]) -> int:
        """The slot that this trajectory continues, or FREE."""
        actor, incarnation, sequence = origin(trajectory)
        stream = self.streams.get(actor)
        if stream is None or self.uid[stream.slot] != stream.uid:
            return FREE
        is_next = (incarnation, sequence) == (stream.incarnation, stream.sequence + 1)
        return stream.slot if is_next and self._same_row(trajectory, stream.slot) else FREE

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
        slot, tail = self.slots.take(), self.tails.take()
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
        self._mark(slice(begin, end), True)
        self._mark(slice(behind, behind + self.num_envs), True)
        version = trajectory["parameter_version"]
        self.versions[slot] = version.reshape(len(version), -1)[:-1, 0]
        if self.stacks:
            self._put_stacks(trajectory, slot, previous)
        if previous != FREE:
            self._free_tail(previous)
            self.following[previous] = slot
            if previous in self.tail_spares_of:
                moved = self.tail_spares_of.pop(previous)
                self.spares_of.setdefault(slot, []).extend(moved)
        actor, incarnation, sequence = origin(trajectory)
        self.streams[actor] = Stream(incarnation, sequence, slot, uid)
        self.gaps += previous == FREE
        return slot

    def _put_stacks(self, trajectory: dict[str, np.ndarray], slot: int, previous: int) -> None:
        begin, tail = slot * self.block_size, int(self.tail_entries(slot)[0])
        before, begins = None, np.ones(self.num_envs, bool)
        if previous != FREE:
            before = self.tail_entries(previous)
            begins = ~self.whole[before]
        for name, stack in self.stacks.items():
            rows, first = np.ascontiguousarray(trajectory[name]), trajectory["first"]
            take = partial(self.spare, slot)
            for damaged in stack.put(rows, first, begin, tail, before, begins, take):
                self.whole[damaged] = False

    def put_finals(self, trajectory: dict[str, np.ndarray], slot: int) -> np.ndarray:
        """Keep the true last observations of truncated episodes where they lie beside the rows
        (SAME_STEP); their entries [T, E], FREE where there is none or it was lost."""
        entries = np.full((self.num_steps, self.num_envs), FREE)
        if self.final_leaves:
            truncated = trajectory["truncated"][:-1] & ~trajectory["terminated"][:-1]
            for row, env in np.argwhere(truncated):
                entries[row, env] = self._put_final(trajectory, slot, row, env)
        return entries

    def _put_final(self, trajectory: dict[str, np.ndarray], slot: int, row: int, env: int) -> int:
        entry, kept = self.spare(slot), True
        if entry is None:
            return FREE
        last_entry = slot * self.block_size + row * self.num_envs + env
        for name, array in self.arrays.items():
            if name in self.final_leaves:
                array[entry] = trajectory["final_" + name][row, env]
            elif name == ACTION_MASK:
                array[entry] = True  # none was given there: all actions are open
            else:
                array[entry] = trajectory[name][row, env]
        for name, stack in self.stacks.items():
            final, last = trajectory["final_" + name][row, env], trajectory[name][row, env]
            kept &= stack.put_final(final, entry, last, last_entry, partial(self.spare, slot))
        return entry if kept else FREE

    def spare(self, slot: int, for_tail: bool = False) -> int | None:
        """One more entry that lives as long as the block in `slot`, or None, counted.

        With `for_tail` it belongs to row T, and goes with it to the block that follows."""
        if self.spares.is_empty:
            self.dropped["no_spare_entry"] += 1
            return None
        entry = self.first_spare + self.spares.take()
        owned = self.tail_spares_of if for_tail else self.spares_of
        owned.setdefault(slot, []).append(entry)
        self._mark(entry, True)
        return entry

    def _free_tail(self, slot: int) -> None:
        if self.tail[slot] != FREE:
            self._mark(self.tail_entries(slot), False)
            self.tails.returned.append(int(self.tail[slot]))
            self.tail[slot] = FREE

    def oldest(self) -> int:
        while self.uid[self.order[0][0]] != self.order[0][1]:
            self.order.popleft()
        return self.order[0][0]

    def evict(self, slot: int) -> None:
        """Free a block with its tail and spares, and cut it out of its chain."""
        after = self.walk(self.following, slot, self._frame_rows)
        self._free_tail(slot)
        self._mark(slice(slot * self.block_size, (slot + 1) * self.block_size), False)
        spares = self.spares_of.pop(slot, []) + self.tail_spares_of.pop(slot, [])
        self._mark(spares, False)
        # Now, before the place is used again: afterwards a lost frame could not be told from a new.
        for other in after:
            self._check_stacks(other)
        self.spares.returned.extend(entry - self.first_spare for entry in spares)
        for near, link in ((self.preceding, self.following), (self.following, self.preceding)):
            if near[slot] != FREE:
                link[near[slot]] = FREE
        self.following[slot] = self.preceding[slot] = self.uid[slot] = FREE
        self.slots.returned.append(slot)

    def _mark(self, entries: slice | int | list[int] | np.ndarray, present: bool) -> None:
        self.live[entries] = present
        self.whole[entries] = present

    def _check_stacks(self, slot: int) -> None:
        entries = np.arange(slot * self.block_size, (slot + 1) * self.block_size)
        if self.tail[slot] != FREE:
            entries = np.concatenate([entries, self.tail_entries(slot)])
        for stack in self.stacks.values():
            self.whole[entries] &= stack.intact(entries, self.live)

    def walk(self, links: np.ndarray, slot: int, num_rows: int) -> list[int]:
        """The blocks up to `num_rows` away along `preceding` or `following`, nearest first."""
        found = []
        for _ in range(-(-num_rows // self.num_steps)):
            slot = int(links[slot])
            if slot == FREE:
                break
            found.append(slot)
        return found

    def gather(self, name: str, entries: np.ndarray, out: np.ndarray) -> None:
        """Copy a field of `entries` into `out` [len(entries), ...], which must be contiguous."""
        if name in self.stacks:
            self.stacks[name].gather(entries, out)
        else:
            np.take(self.arrays[name], entries, axis=0, out=out, mode="clip")
