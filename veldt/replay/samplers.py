# SPDX-License-Identifier: Apache-2.0
"""Which items are drawn from a store, how they are weighted, and how often."""

from __future__ import annotations

import numpy as np

from veldt.replay.items import Changes, ItemStore

_LEAST_PRIORITY = 1e-6
_BLOCK = 32  # leaves; in NumPy faster than 16 or 64


class SumTree:
    """Non-negative float64 masses, one per leaf; draws in proportion to them.

    A tree of two levels, leaves and the sums of their blocks, because in NumPy a pass over all sums
    costs less than more levels. Sums are always recomputed from their leaves, so that no rounding
    error accumulates. A leaf of mass 0 is never drawn."""

    def __init__(self, num_leaves: int) -> None:
        self.num_leaves = num_leaves
        self._blocks = np.zeros((-(-num_leaves // _BLOCK), _BLOCK))
        self._sums = np.zeros(len(self._blocks))

    @property
    def leaves(self) -> np.ndarray:
        """All masses; do not write to them."""
        return self._blocks.reshape(-1)[: self.num_leaves]

    def set(self, indices: np.ndarray, masses: np.ndarray | float) -> None:
        """Set masses (finite, not negative); of repeated indices the last one counts."""
        values = np.asarray(masses)
        if not np.all((values >= 0.0) & (values < np.inf)):
            raise ValueError("masses must be finite and not negative")
        self.leaves[indices] = values
        changed = np.asarray(indices) // _BLOCK
        if len(changed) > len(self._sums):  # repeated blocks cost more than all of them
            changed = np.arange(len(self._sums))
        self._sums[changed] = self._blocks[changed].sum(axis=1)

    def sample(self, draws: np.ndarray) -> np.ndarray:
        """The leaves in which `draws` from [0, 1) fall, int64."""
        until = self._sums.cumsum()
        total = until[-1]
        if not total > 0.0:
            raise ValueError("nothing to draw: all masses are 0")
        masses = draws * total
        # Rounding must not carry a mass past the last block or leaf, nor before the first one.
        last = until.searchsorted(total)
        blocks = np.minimum(until.searchsorted(masses, side="right"), last)
        reached = self._blocks[blocks].cumsum(axis=1)
        masses -= until[blocks] - self._sums[blocks]
        masses = np.clip(masses, 0.0, np.nextafter(reached[:, -1], 0.0))
        return blocks * _BLOCK + (reached > masses[:, None]).argmax(axis=1)


class UniformSampler:
    """Every valid item with the same probability, with replacement."""

    def __init__(self, store: ItemStore) -> None:
        self._store = store

    def apply(self, changes: Changes, priorities: np.ndarray | None = None) -> None:
        """Does nothing: the store knows which items are valid."""

    def sample(self, num: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Indices int64 [num] and weights of 1, float32 [num]."""
        store, found = self._store, np.empty(0, np.int64)
        if not store.size:
            raise ValueError("nothing to draw: the replay is empty")
        share = store.size / store.range
        while (missing := num - len(found)) > 0:
            drawn = random.integers(0, store.range, int(missing / share * 1.1) + 8)
            found = np.concatenate([found, drawn[store.valid[drawn]][:missing]])
        return found, np.ones(num, np.float32)

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Ignores priorities; returns how many of the items are gone."""
        return int(ids.size - self._store.find(ids)[0].size)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class PrioritizedSampler:
    """P(i) = p_i^alpha / sum_k p_k^alpha, weights (N P(i))^-beta scaled to a maximum of 1.

    The maximum is taken over the batch. New items without a priority get the largest one seen."""

    def __init__(self, store: ItemStore, alpha: float = 0.6, beta: float = 0.4) -> None:
        self._store, self._tree = store, SumTree(store.capacity)
        self.alpha, self.beta = alpha, beta
        self._max_priority = 1.0

    def masses(self) -> np.ndarray:
        """p^alpha of every item, 0 where there is none; do not write to it."""
        return self._tree.leaves

    def apply(self, changes: Changes, priorities: np.ndarray | None = None) -> None:
        """Follow the store. `priorities` of `changes.inserted`; None: the largest one seen."""
        if changes.removed.size:
            self._tree.set(changes.removed, 0.0)
        if not changes.inserted.size:
            return
        if priorities is None:
            self._tree.set(changes.inserted, self._max_priority**self.alpha)
        else:
            self._tree.set(changes.inserted, self._mass(priorities))

    def _mass(self, priorities: np.ndarray) -> np.ndarray:
        raised = np.maximum(priorities, _LEAST_PRIORITY)
        largest = float(raised.max()) if raised.size else 0.0
        if not largest < np.inf:
            raise ValueError("priorities must be finite")
        self._max_priority = max(self._max_priority, largest)
        return raised.astype(np.float64) ** self.alpha

    def sample(self, num: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Indices int64 [num] and importance weights float32 [num]."""
        tree = self._tree
        indices = tree.sample(random.random(num))
        # (N P)^-beta / max(...): N and the total cancel, which leaves (mass / least mass)^-beta.
        masses = tree.leaves[indices]
        return indices, ((masses / masses.min()) ** -self.beta).astype(np.float32)

    def priorities(self, indices: np.ndarray) -> np.ndarray:
        masses = self._tree.leaves[indices]
        return masses ** (1.0 / self.alpha) if self.alpha else masses

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities of sampled items; returns how many of them are gone."""
        indices, present = self._store.find(ids)
        stale = ids.size - indices.size
        self._tree.set(indices, self._mass(priorities[present] if stale else priorities))
        return int(stale)

    def state(self) -> dict[str, np.ndarray]:
        numbers = np.array([self._max_priority, self.beta])
        return {"masses": self._tree.leaves.copy(), "numbers": numbers}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._tree.set(np.arange(self._tree.num_leaves), state["masses"])
        self._max_priority, self.beta = (float(value) for value in state["numbers"])


class RateLimiter:
    """Keeps |samples - samples_per_insert * (inserts - min_size)| within an error buffer.

    As in Reverb and Acme the buffer is min_size * samples_per_insert * tolerance. It is never so
    narrow that both sides would wait for each other: it spans at least one largest insert and one
    largest sample. `samples_per_insert` None: only the minimum size counts."""

    def __init__(
        self,
        samples_per_insert: float | None,
        min_size_to_sample: int = 1,
        tolerance: float = 0.1,
        *,
        largest_insert: int = 1,
        largest_sample: int = 1,
    ) -> None:
        self.samples_per_insert = samples_per_insert
        self.min_size_to_sample = max(1, min_size_to_sample)
        self.num_inserted = 0
        self.num_sampled = 0
        ratio = samples_per_insert or 0.0
        self.error_buffer = max(
            self.min_size_to_sample * ratio * tolerance, largest_insert * ratio, largest_sample
        )

    @property
    def surplus(self) -> float:
        """samples_per_insert * (inserts - min_size) - samples: how far sampling is behind."""
        ratio = self.samples_per_insert or 0.0
        return ratio * (self.num_inserted - self.min_size_to_sample) - self.num_sampled

    def can_insert(self, num: int = 1) -> bool:
        if self.samples_per_insert is None or self.num_inserted < self.min_size_to_sample:
            return True
        return self.surplus + num * self.samples_per_insert <= self.error_buffer

    def can_sample(self, num: int = 1) -> bool:
        if self.num_inserted < self.min_size_to_sample:
            return False
        return self.samples_per_insert is None or self.surplus - num >= -self.error_buffer

    def inserted(self, num: int) -> None:
        self.num_inserted += num

    def sampled(self, num: int) -> None:
        self.num_sampled += num

    def state(self) -> dict[str, np.ndarray]:
        return {"counts": np.array([self.num_inserted, self.num_sampled])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.num_inserted, self.num_sampled = (int(count) for count in state["counts"])
