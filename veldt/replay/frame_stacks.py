# SPDX-License-Identifier: Apache-2.0
"""Stacked image observations with each frame kept once.

An entry keeps its newest frame and the places of the older ones. Whether a stack continues the one
before it is compared, not assumed: resets, padding and gaps of any kind come back as they went in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from veldt.errors import ConfigurationError


class FrameStacks:
    """All stacks of one observation leaf. Oldest frame first, along the leading axis."""

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: str, depth: int, num_entries: int
    ) -> None:
        if not shape or shape[0] % depth:
            raise ConfigurationError(
                f"{name} has shape {shape}: its first axis is not a stack of {depth} frames;"
                " set frame_stack to the number of frames that the environment stacks, or to 1"
            )
        self._depth, self._size = depth, int(np.prod(shape)) // depth
        self.frames = np.zeros((num_entries, self._size), dtype)
        self.older = np.zeros((num_entries, depth - 1), np.int32)
        # Whole words compare eight times as fast as bytes.
        self._word = np.uint64 if self._size * np.dtype(dtype).itemsize % 8 == 0 else np.uint8
        self._blank = num_entries - 1

    def put(
        self,
        rows: np.ndarray,
        entries: np.ndarray,
        before: np.ndarray,
        begins: np.ndarray,
        spare: Callable[[bool], int | None],
    ) -> list[np.ndarray]:
        """Store `rows` [T+1, E, ...] at `entries` [T+1, E].

        `before`: entries [E] that held row 0 until now; of no meaning where `begins` [E], since a
        chain starts there. `spare`: takes one more entry, for the last row or not, or answers None.
        Returns entries whose stack could not be kept."""
        num_rows, num_envs = entries.shape
        depth, size = self._depth, self._size
        stacks = rows.reshape(num_rows, num_envs, depth, size)
        self._write_newest(stacks, entries)
        oldest = self.older[before].T
        # Row 0 moves to a new entry; so do older frames that equal its newest one.
        line = np.concatenate([np.where(oldest == before, entries[0], oldest), entries])
        windows = np.lib.stride_tricks.sliding_window_view(line, depth - 1, axis=0)
        self.older[entries] = windows[:num_rows]
        heads = np.zeros((num_rows, num_envs), bool)
        heads[0] = begins
        words = rows.reshape(num_rows, num_envs, depth * size).view(self._word)
        step = words.shape[-1] // depth
        np.logical_not((words[1:, :, :-step] == words[:-1, :, step:]).all(axis=-1), out=heads[1:])
        lost = []
        for row, env in np.argwhere(heads):
            followers = entries[row : row + depth - 1, env]
            take = partial(spare, bool(row == num_rows - 1))
            lost += self._begin(stacks[row, env], followers, take)
        return lost

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
        if np.array_equal(frames[:-1], last.reshape(self._depth, self._size)[1:]):
            self.older[entry] = [*self.older[last_entry, 1:], last_entry]
            return True
        return not self._begin(frames, np.array([entry]), spare)

    def _write_newest(self, stacks: np.ndarray, entries: np.ndarray) -> None:
        num_steps, num_envs = len(entries) - 1, entries.shape[1]
        block, tail = entries[0, 0], entries[-1, 0]
        kept = self.frames[block : block + num_steps * num_envs]
        kept.reshape(num_steps, num_envs, self._size)[:] = stacks[:-1, :, -1]
        self.frames[tail : tail + num_envs] = stacks[-1, :, -1]

    def _begin(
        self, frames: np.ndarray, followers: np.ndarray, spare: Callable[[], int | None]
    ) -> list[np.ndarray]:
        """Find places for the older frames of a stack that does not continue the one before.

        `followers`: this entry and the next ones, which share its older frames."""
        places = np.empty(self._depth - 1, np.int64)
        newer = followers[0]
        for position in range(self._depth - 2, -1, -1):
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
            self.older[entry, : self._depth - 1 - distance] = places[distance:]
        return []

    def gather(self, entries: np.ndarray, out: np.ndarray) -> None:
        """Rebuild the stacks of `entries` into `out` [len(entries), ...], which is contiguous."""
        places = np.empty((entries.size, self._depth), np.int64)
        places[:, :-1] = self.older[entries]
        places[:, -1] = entries
        flat = out.reshape(entries.size * self._depth, self._size)
        np.take(self.frames, places.reshape(-1), axis=0, out=flat, mode="clip")

    def intact(self, entries: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Whether all older frames of each entry are still there."""
        return live[self.older[entries]].all(axis=-1)
