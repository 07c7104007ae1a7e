# SPDX-License-Identifier: Apache-2.0
"""Memory of a replay: trajectories as fixed blocks of rows, chained where one continues another.

Row T of a trajectory is row 0 of the next one of the same actor, so a block keeps T rows. Row T is
kept in a tail until the next block brings it; the last block of a chain keeps its tail. Of stacked
images each frame is kept once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from veldt.errors import ConfigurationError
from veldt.resources import require_bytes
from veldt.types import (
    ACTION_MASK,
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
    actor, incarnation, sequence, *_ = trajectory["provenance"].reshape(-1).tolist()
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


class FrameStacks:
    """All stacks of one observation leaf. Oldest frame first, along the leading axis.

    An entry lists the places of its frames. Whether a stack continues the previous one is compared,
    not assumed, so that resets, padding and gaps of any kind are restored exactly.

    Inside a block the frames of one environment are adjacent, so that most stacks are read in one
    sweep; after the blocks a frame's place is its entry. The last place is a blank frame."""

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: str, depth: int, num_entries: int
    ) -> None:
        if not shape or shape[0] % depth:
            raise ConfigurationError(
                f"{name} has shape {shape}: its first axis is not a stack of {depth} frames;"
                " set frame_stack to the number of frames that the environment stacks, or to 1"
            )
        self._depth, self._size = depth, int(np.prod(shape)) // depth
        # np.empty gets huge pages for large arrays, which saves a page fault for every frame.
        self.frames = np.empty((num_entries, self._size), dtype)
        self.frames[-1] = 0
        self.places = np.zeros((num_entries, depth), np.int32)
        """Places of each entry's frames, its own newest one last."""
        # Comparing words is eight times as fast as comparing bytes.
        self._word = np.uint64 if self._size * np.dtype(dtype).itemsize % 8 == 0 else np.uint8
        self._blank = num_entries - 1

    def put(
        self,
        rows: np.ndarray,
        first: np.ndarray,
        begin: int,
        tail: int,
        before: np.ndarray | None,
        begins: np.ndarray,
        spare: Callable[[bool], int | None],
    ) -> list[np.ndarray]:
        """Store `rows` [T+1, E, ...] in the block of entries from `begin`, the last one at `tail`.

        `before`: entries [E] that held row 0 until now. `begins` [E]: row 0 continues nothing.
        `spare`: takes one more entry, for the last row or not, or returns None. Returns entries
        whose stack could not be kept."""
        num_steps, num_envs = len(rows) - 1, rows.shape[1]
        depth, end = self._depth, begin + num_steps * num_envs
        stacks = rows.reshape(num_steps + 1, num_envs, depth, self._size)
        in_block = self.frames[begin:end].reshape(num_envs, num_steps, self._size)
        in_block[:] = stacks[:-1, :, -1].swapaxes(0, 1)
        self.frames[tail : tail + num_envs] = stacks[-1, :, -1]

        own = np.empty((num_steps + 1, num_envs), np.int64)
        own[:-1] = np.arange(begin, end).reshape(num_envs, num_steps).T
        own[-1] = entries_behind = np.arange(tail, tail + num_envs)
        older = np.zeros((depth - 1, num_envs), np.int64)
        if before is not None:
            # Row 0 moves to a new place; so do older frames that equal its newest one.
            kept = self.places[before, :-1].T
            older = np.where(kept == before, own[0], kept)
        line = np.concatenate([older, own])
        block = self.places[begin:end].reshape(num_steps, num_envs, depth)
        for column in range(depth):
            block[:, :, column] = line[column : column + num_steps]
        self.places[entries_behind] = line[-depth:].T

        lost: list[np.ndarray] = []
        heads = self._heads(stacks, first, begins)
        if heads.any():
            entries = np.arange(begin, end).reshape(num_steps, num_envs)
            entries = np.concatenate([entries, entries_behind[None]])
            for row, env in np.argwhere(heads):
                followers = entries[row : row + depth - 1, env]
                take = partial(spare, bool(row == num_steps))
                lost += self._begin(stacks[row, env], followers, take)
        return lost

    def _heads(self, stacks: np.ndarray, first: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Which stacks do not continue the previous row.

        Within an episode it is enough that the last but one frame is the previous row's newest;
        where an episode begins, all older frames are compared."""
        heads = np.empty(first.shape, bool)
        heads[0] = begins
        words = stacks.view(self._word)
        np.any(words[1:, :, -2] != words[:-1, :, -1], axis=-1, out=heads[1:])
        for row, env in np.argwhere(first[1:] & ~heads[1:]):
            heads[row + 1, env] = not np.array_equal(words[row + 1, env, :-1], words[row, env, 1:])
        return heads

    def _begin(
        self, frames: np.ndarray, followers: np.ndarray, spare: Callable[[], int | None]
    ) -> list[np.ndarray]:
        """Find places for the older frames of a stack that does not continue the previous one.

        `followers`: this entry and the next ones, which share its older frames."""
        depth = self._depth
        places = np.empty(depth - 1, np.int64)
        newer = self.places[followers[0], -1]
        for position in range(depth - 2, -1, -1):
            if np.array_equal(frames[position], frames[position + 1]):
                place = newer
            elif not frames[position].any():
                place = self._blank
            else:
                taken = spare()
                if taken is None:
                    return [followers]
                self.frames[taken] = frames[position]
                place = taken
            places[position] = newer = place
        for distance, entry in enumerate(followers):
            self.places[entry, : depth - 1 - distance] = places[distance:]
        return []

    def put_final(
        self,
        stack: np.ndarray,
        entry: int,
        last: np.ndarray,
        last_entry: int,
        spare: Callable[[], int | None],
    ) -> bool:
        """Store the stack that came after the `last` row of an episode; False if it was lost."""
        frames = stack.reshape(self._depth, self._size)
        self.frames[entry] = frames[-1]
        self.places[entry, -1] = entry
        if np.array_equal(frames[:-1], last.reshape(self._depth, self._size)[1:]):
            self.places[entry, :-1] = self.places[last_entry, 1:]
            return True
        return not self._begin(frames, np.array([entry]), spare)

    def gather(self, entries: np.ndarray, out: np.ndarray) -> None:
        """Rebuild the stacks of `entries` into `out` [len(entries), ...], which is contiguous."""
        places = self.places[entries].reshape(-1)
        flat = out.reshape(places.size, self._size)
        np.take(self.frames, places, axis=0, out=flat, mode="clip")

    def intact(self, entries: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Whether all frames of each entry are still there."""
        return live[self.places[entries]].all(axis=-1)


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
        self.lost_observations = 0
        """Those that no spare entry was left for."""
        self.slots = Pool(self.num_blocks)
        self.tails = Pool(self.num_blocks)
        self.spares = Pool(self.num_spares)
        self.spares_of: dict[int, list[int]] = {}
        self.tail_spares_of: dict[int, list[int]] = {}
        self._frame_rows = frame_stack - 1 if self.stacks else 0
        self._columns = np.arange(self.num_envs)

    def predecessor(self, trajectory: dict[str, np.ndarray]) -> int:
        """The slot that this trajectory continues, or FREE."""
        actor, incarnation, sequence = origin(trajectory)
        stream = self.streams.get(actor)
        if stream is None or self.uid[stream.slot] != stream.uid:
            return FREE
        is_next = (incarnation, sequence) == (stream.incarnation, stream.sequence + 1)
        return stream.slot if is_next else FREE

    def tail_entries(self, slot: int) -> np.ndarray:
        """Entries [E] of the row after a block that no other follows."""
        return self.first_tail + self.tail[slot] * self.num_envs + self._columns

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
            self.lost_observations += 1
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
        state["counts"] = np.array([self.blocks_added, self.lost_observations], np.int64)
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
        self.blocks_added, self.lost_observations = state["counts"].tolist()

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
