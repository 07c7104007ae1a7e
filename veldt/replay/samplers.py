# SPDX-License-Identifier: Apache-2.0
"""Which items are drawn from a store, and how they are weighted."""

from __future__ import annotations

import numpy as np

from veldt.replay.items import Changes, ItemStore


class UniformSampler:
    """Every valid item with the same probability, with replacement."""

    def __init__(self, store: ItemStore) -> None:
        self._store = store

    def apply(self, changes: Changes, priorities: np.ndarray | None = None) -> None:
        """Does nothing: the store knows which items are valid."""

    def sample(self, num: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Indices int64 [num] and weights of 1, float32 [num]."""
        return self._draw(num, random), np.ones(num, np.float32)

    def _draw(self, num: int, random: np.random.Generator) -> np.ndarray:
        store = self._store
        if not store.size:
            raise ValueError("nothing to draw: the replay is empty")
        if store.size < store.range // 8:  # refusals would outnumber hits
            candidates = np.flatnonzero(store.valid[: store.range])
            return candidates[random.integers(0, candidates.size, num)]
        share = store.size / store.range
        found: list[np.ndarray] = []
        missing = num
        while missing > 0:
            drawn = random.integers(0, store.range, int(missing / share * 1.1) + 8)
            hits = drawn[store.valid[drawn]][:missing]
            found.append(hits)
            missing -= hits.size
        return found[0] if len(found) == 1 else np.concatenate(found)

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Ignores priorities; returns how many of the items are gone."""
        return int(ids.size - self._store.find(ids)[0].size)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class PrioritizedSampler:
    """P(i) = p_i^alpha / sum_k p_k^alpha, weights (N P(i))^-beta scaled to a maximum of 1.

    The maximum is taken over the batch. New items without a priority get the largest one seen."""

    def __init__(
        self,
        store: ItemStore,
        alpha: float = 0.6,
        beta: float = 0.4,
        min_priority: float = 1e-6,
    ) -> None:
        from veldt.replay.sum_tree import SumTree  # loads numba

        self._store, self._tree = store, SumTree(store.capacity)
        self.alpha, self.beta = alpha, beta
        self._min_priority, self._max_priority = min_priority, 1.0

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
        raised = np.maximum(priorities, self._min_priority)
        largest = float(raised.max()) if raised.size else 0.0
        if not largest < np.inf:
            raise ValueError("priorities must be finite")
        self._max_priority = max(self._max_priority, largest)
        return raised.astype(np.float64) ** self.alpha

    def sample(self, num: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Indices int64 [num] and importance weights float32 [num]."""
        tree = self._tree
        indices = tree.sample(num, random)
        # (N P)^-beta / max(...): N and the total cancel, which leaves (mass / least mass)^-beta.
        masses = tree.get(indices)
        return indices, ((masses / masses.min()) ** -self.beta).astype(np.float32)

    def priorities(self, indices: np.ndarray) -> np.ndarray:
        return (
            self._tree.get(indices) ** (1.0 / self.alpha) if self.alpha else np.ones(len(indices))
        )

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities of sampled items; returns how many of them are gone."""
        indices, present = self._store.find(ids)
        stale = ids.size - indices.size
        self._tree.set(indices, self._mass(priorities[present] if stale else priorities))
        return int(stale)

    def state(self) -> dict[str, np.ndarray]:
        return {**self._tree.state(), "numbers": np.array([self._max_priority, self.beta])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self._tree.load_state(state)
        self._max_priority, self.beta = (float(value) for value in state["numbers"])
