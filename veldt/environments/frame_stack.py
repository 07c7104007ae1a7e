# SPDX-License-Identifier: Apache-2.0
"""Joins the last k observations of an episode along the first axis, for all environments at once.

The first observation of an episode fills the whole stack, so that no frame of an earlier episode
remains.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from veldt.types import ObservationLeaf


def stacked(leaf: ObservationLeaf, depth: int) -> ObservationLeaf:
    """The leaf after stacking: [C*k, H, W] or [n*k]; discrete entries are unchanged."""
    if depth == 1 or leaf.kind == "discrete":
        return leaf
    return dataclasses.replace(leaf, shape=(leaf.shape[0] * depth, *leaf.shape[1:]))


class FrameStack:
    """The stacks of one leaf, oldest frame first."""

    def __init__(self, leaf: ObservationLeaf, num_envs: int, depth: int) -> None:
        self._depth = depth
        self._width = leaf.shape[0]
        shape = stacked(leaf, depth).shape
        self.frames = np.zeros((num_envs, *shape), dtype=leaf.dtype)

    def push(self, newest: np.ndarray, first: np.ndarray) -> None:
        """Append the newest frame; where `first`, it fills the stack."""
        width = self._width
        # Frame by frame from the oldest: one overlapping assignment would allocate a temporary.
        for start in range(0, width * (self._depth - 1), width):
            middle = start + width
            self.frames[:, start:middle] = self.frames[:, middle : middle + width]
        self.frames[:, -width:] = newest
        if first.any():
            tiles = (1, self._depth) + (1,) * (newest.ndim - 2)
            self.frames[first] = np.tile(newest[first], tiles)

    def ending_with(self, last: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The stacks of `rows` (before `push`) followed by `last` [len(rows), ...]."""
        return np.concatenate([self.frames[rows, self._width :], last], axis=1)
