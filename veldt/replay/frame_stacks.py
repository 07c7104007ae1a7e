# SPDX-License-Identifier: Apache-2.0
"""Stacked image observations with each frame kept once.

An entry lists the places of its frames. Whether a stack continues the previous one is compared, not
assumed, so that resets, padding and gaps of any kind are restored exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from veldt.errors import ConfigurationError


class FrameStacks:
    """All stacks of one observation leaf. Oldest frame first, along the leading axis.

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
