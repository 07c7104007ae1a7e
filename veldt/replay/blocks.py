# SPDX-License-Identifier: Apache-2.0
"""Memory of a replay: trajectories as fixed blocks of rows, chained where one continues another.

Row T of a trajectory is row 0 of the next one of the same actor, so a block keeps T rows. Row T is
kept in a tail until the next block brings it; the last block of a chain keeps its tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from veldt.errors import ConfigurationError
from veldt.replay.frame_stacks import FrameStacks
from veldt.resources import require_bytes
from veldt.types import (
    ACTION_MASK,
    PROVENANCE_ACTOR,
    PROVENANCE_INCARNATION,
    PROVENANCE_SEQUENCE,
    Layout,
)

FREE = -1
_PER_BLOCK = ("uid", "following", "preceding", "tail", "versions")


def observation_leaves(trajectories: Layout) -> list[str]:
    """Fields that a policy acts on: observations and the action mask."""
    return [
        name for name in trajectories if name == ACTION_MASK or name.split(".")[0] == "observation"
    ]


def require_room(trajectories: Layout, rows: int, frame_stack: int, option: str) -> None:
    """Refuse a replay that could never be filled; each frame of a stack is kept once."""
    leaves, per_row = observation_leaves(trajectories), 0
    for name in (*leaves, "action"):
        spec = trajectories[name]
        size = prod(spec.shape[2:]) * np.dtype(spec.dtype).itemsize
        per_row += size // (frame_stack if name in leaves else 1)
    require_bytes(rows * per_row, "replay", f"lower --{option}")


@dataclass
class Stream:
    """The newest block of one actor."""

    incarnation: int
    sequence: int
    slot: int
    uid: int


def origin(trajectory: dict[str, np.ndarray]) -> tuple[int, int, int]:
    """Actor, incarnation and sequence number of a trajectory."""
    provenance = trajectory["provenance"].reshape(-1)
    places = (PROVENANCE_ACTOR, PROVENANCE_INCARNATION, PROVENANCE_SEQUENCE)
    actor, incarnation, sequence = (int(provenance[place]) for place in places)
    return actor, incarnation, sequence


class Pool:
    """Hands out numbers below `size`, the lowest first, so that memory above stays untouched."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.touched = 0
        """Numbers at or above this were never handed out."""
        self.returned: list[int] = []

    @property
    def is_empty(self) -> bool:
        return self.touched == self.size and not self.returned

    def take(self) -> int:
        if self.returned:
            return self.returned.pop()
        self.touched += 1
        return self.touched - 1


class BlockStore:
    """Rows of all blocks: entry (slot * T + t) * E + e is row t of environment e.

    Tails of E entries each follow the blocks, then spare single entries (an episode's last
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
        for name in (*self.leaves, *fields):
            shape, dtype = layout[name].shape[2:], layout[name].dtype
            if frame_stack > 1 and name in self.leaves and dtype == "uint8" and len(shape) >= 3:
                stack = FrameStacks(name, shape, dtype, frame_stack, num_entries)
                self.stacks[name] = stack
            else:
                self.arrays[name] = np.zeros((num_entries, *shape), dtype)
        self.versions = np.zeros((self.num_blocks, self.num_steps), np.int64)
        self.live = np.zeros(num_entries, bool)
        """Entries in use."""
        self.live[-1] = True  # the blank frame
        self.whole = np.zeros(num_entries, bool)
        """Entries in use whose older frames are there, too."""
        self.uid = np.full(self.num_blocks, FREE)
        self.following = np.full(self.num_blocks, FREE)
        self.preceding = np.full(self.num_blocks, FREE)
        self.tail = np.full(self.num_blocks, FREE)
        self.streams: dict[int, Stream] = {}
        self.blocks_added = 0
        self.order: deque[int] = deque()
        """Slots of all blocks, the oldest first."""
        self.dropped = {"old_incarnation": 0, "repeated": 0, "no_spare_entry": 0}
        self.slots = Pool(self.num_blocks)
        self.tails = Pool(self.num_blocks)
        self.spares = Pool(self.num_spares)
        self.spares_of: dict[int, list[int]] = {}
        self.tail_spares_of: dict[int, list[int]] = {}
        self._frame_rows = frame_stack - 1 if self.stacks else 0
        self._columns = np.arange(self.num_envs)

    def accepts(self, trajectory: dict[str, np.ndarray]) -> bool:
        """Whether it is new; late ones of an older incarnation and repeated ones are counted."""
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
        return stream.slot if is_next else FREE

    def tail_entries(self, slot: int) -> np.ndarray:
        """Entries [E] of the row after a block: its tail, or row 0 of the block that follows."""
        if self.tail[slot] != FREE:
            return self.first_tail + self.tail[slot] * self.num_envs + self._columns
        return self.following[slot] * self.block_size + self._columns

    def put(self, trajectory: dict[str, np.ndarray], previous: int) -> int:
        """Copy a trajectory into a free slot and chain it to `previous`; returns the slot."""
        slot, tail = self.slots.take(), self.tails.take()
        uid, self.blocks_added = self.blocks_added, self.blocks_added + 1
        self.uid[slot], self.tail[slot] = uid, tail
        self.following[slot], self.preceding[slot] = FREE, previous
        self.order.append(slot)
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
        """Keep the last observations of truncated episodes (SAME_STEP resets).

        Returns their entries [T, E], FREE where there is none or it was lost."""
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
                array[entry] = True  # the environment gave none: all actions are allowed
            else:
                array[entry] = trajectory[name][row, env]
        for name, stack in self.stacks.items():
            final, last = trajectory["final_" + name][row, env], trajectory[name][row, env]
            kept &= stack.put_final(final, entry, last, last_entry, partial(self.spare, slot))
        return entry if kept else FREE

    def spare(self, slot: int, for_tail: bool = False) -> int | None:
        """One more entry that lives as long as the block in `slot`; None, counted, if all are used.

        With `for_tail` it belongs to row T, and moves with it to the block that follows."""
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

    def evict_oldest(self) -> list[int]:
        """Free the first block of a chain with its tail and spares; blocks that shared frames."""
        slot = self.order.popleft()
        after = self.walk(self.following, slot, self._frame_rows)
        self._free_tail(slot)
        self._mark(slice(slot * self.block_size, (slot + 1) * self.block_size), False)
        spares = self.spares_of.pop(slot, []) + self.tail_spares_of.pop(slot, [])
        self._mark(spares, False)
        # Before the entries are used again, when a lost frame could not be told from a new one.
        for other in after:
            self._check_stacks(other)
        self.spares.returned.extend(entry - self.first_spare for entry in spares)
        if self.following[slot] != FREE:
            self.preceding[self.following[slot]] = FREE
        self.following[slot] = self.uid[slot] = FREE
        self.slots.returned.append(slot)
        return after

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

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all that is needed to continue; memory that was never used is left out."""
        state = {name: getattr(self, name)[: self.slots.touched].copy() for name in _PER_BLOCK}
        for name, array in self._per_entry():
            for part, span in self._used().items():
                state[f"{name}.{part}"] = array[span].copy()
        for name, pool in self._pools().items():
            state[f"pool.{name}"] = np.array([pool.touched, *pool.returned])
        for name, owned in (("own", self.spares_of), ("tail", self.tail_spares_of)):
            pairs = [(slot, entry) for slot, entries in owned.items() for entry in entries]
            state[f"spares.{name}"] = np.array(pairs, np.int64).reshape(-1, 2)
        streams = [(actor, *vars(stream).values()) for actor, stream in self.streams.items()]
        state["streams"] = np.array(streams, np.int64).reshape(-1, 5)
        state["order"] = np.array(self.order, np.int64)
        state["counts"] = np.array([self.blocks_added, *self.dropped.values()], np.int64)
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore into a store of the same layout and capacity."""
        for name, pool in self._pools().items():
            touched, *returned = state[f"pool.{name}"].tolist()
            if touched > pool.size:
                raise ValueError(
                    f"the saved replay has {touched} {name}, this one has room for {pool.size};"
                    " resume with the same capacity"
                )
            pool.touched, pool.returned = touched, returned
        for name in _PER_BLOCK:
            getattr(self, name)[: self.slots.touched] = state[name]
        for name, array in self._per_entry():
            for part, span in self._used().items():
                array[span] = state[f"{name}.{part}"]
        for name, owned in (("own", self.spares_of), ("tail", self.tail_spares_of)):
            owned.clear()
            for slot, entry in state[f"spares.{name}"].tolist():
                owned.setdefault(slot, []).append(entry)
        self.streams = {row[0]: Stream(*row[1:]) for row in state["streams"].tolist()}
        self.order = deque(state["order"].tolist())
        self.blocks_added, *dropped = state["counts"].tolist()
        self.dropped = dict(zip(self.dropped, dropped, strict=True))

    def _per_entry(self) -> Iterator[tuple[str, np.ndarray]]:
        yield "live", self.live
        yield "whole", self.whole
        for name, array in self.arrays.items():
            yield f"field.{name}", array
        for name, stack in self.stacks.items():
            yield f"frames.{name}", stack.frames
            yield f"places.{name}", stack.places

    def _pools(self) -> dict[str, Pool]:
        return {"blocks": self.slots, "tails": self.tails, "spares": self.spares}

    def _used(self) -> dict[str, slice]:
        """Entries that were ever written."""
        last_tail = self.first_tail + self.tails.touched * self.num_envs
        return {
            "rows": slice(0, self.slots.touched * self.block_size),
            "tails": slice(self.first_tail, last_tail),
            "spares": slice(self.first_spare, self.first_spare + self.spares.touched),
        }
