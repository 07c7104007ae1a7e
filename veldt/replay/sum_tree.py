# SPDX-License-Identifier: Apache-2.0
"""Proportional sampling in logarithmic time. Imported only when needed: numba loads slowly.

A tree is one float64 array, leaves first, each level padded to a multiple of FANOUT and followed by
its parents; `offsets` holds where each level begins, the root last. Parents are always summed anew
from their children, so that no rounding error builds up. With one million leaves, drawing 512 of
them and setting their masses takes 0.07 ms; the same tree in NumPy needs 0.5 ms.
"""

from __future__ import annotations

import numba
import numpy as np

FANOUT = 4  # on one million leaves 4 and 8 are equally fast; 2, 16 and 32 are slower
_OUT_OF_RANGE, _NO_MASS = 1, 2


class SumTree:
    """Non-negative float64 masses, one per leaf. A leaf of mass 0 is never drawn."""

    def __init__(self, num_leaves: int) -> None:
        if num_leaves < 1:
            raise ValueError(f"a sum tree needs at least one leaf, not {num_leaves}")
        self.num_leaves = num_leaves
        sizes = [_padded(num_leaves)]
        while sizes[-1] > 1:
            parents = sizes[-1] // FANOUT
            sizes.append(_padded(parents) if parents > 1 else 1)
        self._offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._sums = np.zeros(sum(sizes), np.float64)

    @property
    def total(self) -> float:
        return float(self._sums[-1])

    @property
    def leaves(self) -> np.ndarray:
        """All masses; do not write to them."""
        return self._sums[: self.num_leaves]

    def set(self, indices: np.ndarray, masses: np.ndarray | float) -> None:
        """Set masses (finite, not negative); of repeated indices the last one counts."""
        indices = np.ascontiguousarray(indices, np.int64)
        if isinstance(masses, float | int):
            masses = np.full(indices.shape, float(masses))
        else:
            masses = np.ascontiguousarray(masses, np.float64)
        if masses.shape != indices.shape:
            raise ValueError(f"{masses.size} masses for {indices.size} leaves")
        problem = _check(indices, masses, self.num_leaves)
        if problem == _OUT_OF_RANGE:
            raise IndexError(f"leaf outside 0..{self.num_leaves - 1}")
        if problem == _NO_MASS:
            raise ValueError("masses must be finite and not negative")
        _assign(self._sums, self._offsets, indices, masses)

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
        _find(self._sums, self._offsets, draws * total, found)
        return found

    def check_valid(self) -> None:
        """Raise AssertionError unless every node is exactly the sum of its children."""
        for level, above in zip(self._offsets[:-1], self._offsets[1:], strict=True):
            children = self._sums[level:above].reshape(-1, FANOUT)
            totals = np.zeros(len(children))
            for column in children.T:
                totals += column
            assert np.array_equal(totals, self._sums[above : above + len(children)])
        assert not self._sums[self.num_leaves : self._offsets[1]].any()

    def state(self) -> dict[str, np.ndarray]:
        return {"masses": self.leaves.copy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.set(np.arange(self.num_leaves), state["masses"])


def _padded(count: int) -> int:
    return -(-count // FANOUT) * FANOUT


@numba.njit(cache=True)
def _check(indices: np.ndarray, values: np.ndarray, num_leaves: int) -> int:
    for i in range(indices.size):
        if indices[i] < 0 or indices[i] >= num_leaves:
            return _OUT_OF_RANGE
        if not 0.0 <= values[i] < np.inf:  # NaN compares false
            return _NO_MASS
    return 0


@numba.njit(cache=True)
def _assign(sums: np.ndarray, offsets: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    """Write leaves and recompute all nodes above them."""
    for i in range(indices.size):
        sums[indices[i]] = values[i]
    parents = indices.copy()
    count = parents.size
    for level in range(offsets.size - 1):
        children, above = offsets[level], offsets[level + 1]
        kept, last = 0, -1
        for i in range(count):
            parent = parents[i] // FANOUT
            if parent == last:  # neighbours share parents: one sum for all of them
                continue
            last = parent
            first = children + parent * FANOUT
            total = 0.0
            for child in range(first, first + FANOUT):
                total += sums[child]
            sums[above + parent] = total
            parents[kept] = parent
            kept += 1
        count = kept


@numba.njit(cache=True)
def _find(sums: np.ndarray, offsets: np.ndarray, masses: np.ndarray, found: np.ndarray) -> None:
    """The leaf in which each mass falls; `masses` is overwritten.

    All draws descend together, level by level: their cache misses overlap, which halves the time
    of one draw after the other."""
    found[:] = 0
    for level in range(offsets.size - 2, -1, -1):
        base = offsets[level]
        for i in range(masses.size):
            first = base + found[i] * FANOUT
            mass = masses[i]
            pick, passed, reached = 0, 0.0, 0.0
            for child in range(FANOUT - 1):
                reached += sums[first + child]
                beyond = mass >= reached
                pick += beyond
                passed = reached if beyond else passed
            mass -= passed
            if mass >= sums[first + pick]:  # rounding carried it past the last positive child
                while pick > 0 and sums[first + pick] <= 0.0:
                    pick -= 1
                mass = 0.5 * sums[first + pick]
            masses[i] = mass
            found[i] = found[i] * FANOUT + pick
