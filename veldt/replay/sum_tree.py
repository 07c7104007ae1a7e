# SPDX-License-Identifier: Apache-2.0
"""Proportional sampling over a fixed number of leaves: set and draw in logarithmic time."""

from __future__ import annotations

from typing import Any

import numpy as np


class SumTree:
    """Non-negative float64 masses, one per leaf. A leaf of mass 0 is never drawn.

    Invariant: each node is the sum of its children as added now; `check_valid` proves it."""

    def __init__(self, num_leaves: int) -> None:
        from veldt.replay import sum_tree_kernels as kernels

        if num_leaves < 1:
            raise ValueError(f"a sum tree needs at least one leaf, not {num_leaves}")
        self._kernels: Any = kernels
        self.num_leaves = num_leaves
        sizes = [_padded(num_leaves, kernels.FANOUT)]
        while sizes[-1] > 1:
            parents = sizes[-1] // kernels.FANOUT
            sizes.append(_padded(parents, kernels.FANOUT) if parents > 1 else 1)
        self._offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._sums = np.zeros(sum(sizes), np.float64)

    @property
    def total(self) -> float:
        return float(self._sums[-1])

    @property
    def leaves(self) -> np.ndarray:
        """All masses, to be read only."""
        return self._sums[: self.num_leaves]

    def set(self, indices: np.ndarray, masses: np.ndarray | float) -> None:
        """Give leaves new masses (finite, not negative); of repeated indices the last counts."""
        indices = np.ascontiguousarray(indices, np.int64)
        if isinstance(masses, float | int):
            masses = np.full(indices.shape, float(masses))
        else:
            masses = np.ascontiguousarray(masses, np.float64)
        if masses.shape != indices.shape:
            raise ValueError(f"{masses.size} masses for {indices.size} leaves")
        problem = self._kernels.check(indices, masses, self.num_leaves)
        if problem == 1:
            raise IndexError(f"leaf outside 0..{self.num_leaves - 1}")
        if problem == 2:
            raise ValueError("masses must be finite and not negative")
        self._kernels.assign(self._sums, self._offsets, indices, masses)

    def get(self, indices: np.ndarray) -> np.ndarray:
        return self._sums[indices]

    def sample(self, num: int, random: np.random.Generator | np.ndarray) -> np.ndarray:
        """Leaves drawn in proportion to their mass, int64 [num].

        `random` is a generator or `num` uniform draws from [0, 1)."""
        total = self._sums[-1]
        if not total > 0.0:
            raise ValueError("nothing to draw: all masses are 0")
        draws = random.random(num) if isinstance(random, np.random.Generator) else random
        found = np.empty(num, np.int64)
        self._kernels.find(self._sums, self._offsets, draws * total, found)
        return found

    def check_valid(self) -> None:
        """Raise AssertionError unless every node is exactly the sum of its children."""
        fanout = self._kernels.FANOUT
        for level, above in zip(self._offsets[:-1], self._offsets[1:], strict=True):
            children = self._sums[level:above].reshape(-1, fanout)
            totals = np.zeros(len(children))
            for column in children.T:
                totals += column
            assert np.array_equal(totals, self._sums[above : above + len(children)])
        assert not self._sums[self.num_leaves : self._offsets[1]].any()

    def state(self) -> dict[str, np.ndarray]:
        return {"masses": self.leaves.copy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.set(np.arange(self.num_leaves), state["masses"])


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
