# SPDX-License-Identifier: Apache-2.0
"""Which blocks leave a full replay. Eviction works by whole trajectories, the unit of storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from veldt.replay.items import ItemStore


class Priorities(Protocol):
    """A sampler that knows how likely each item is drawn."""

    def masses(self) -> np.ndarray: ...


class Remover(Protocol):
    """Chooses blocks; the store evicts them."""

    def victims(self, store: ItemStore) -> Iterable[int]:
        """At least one block, called when there is no room for another."""

    def excess(self, store: ItemStore) -> Iterator[int]:
        """Blocks to evict now, asked once per learner update, read lazily during eviction."""

    def state(self) -> dict[str, np.ndarray]: ...

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class Fifo:
    """Hard cap: the oldest leaves when there is no room."""

    def victims(self, store: ItemStore) -> Iterable[int]:
        return [store.blocks.oldest()]

    def excess(self, store: ItemStore) -> Iterator[int]:
        return iter(())

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class SoftCap(Fifo):
    """Ape-X: adds evict nothing while memory lasts; every `every_calls` the oldest above the cap
    leave.

    The store's capacity is the memory, and should lie well above `max_items`."""

    def __init__(self, max_items: int, every_calls: int = 100) -> None:
        self.max_items, self.every_calls = max_items, every_calls
        self.calls = 0
        self.forced_evictions = 0

    def victims(self, store: ItemStore) -> Iterable[int]:
        self.forced_evictions += 1
        return super().victims(store)

    def excess(self, store: ItemStore) -> Iterator[int]:
        self.calls += 1
        if self.calls % self.every_calls == 0:
            while store.size > self.max_items:
                yield store.blocks.oldest()

    def state(self) -> dict[str, np.ndarray]:
        return {"counts": np.array([self.calls, self.forced_evictions])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.calls, self.forced_evictions = (int(count) for count in state["counts"])


class LowestPriority(Fifo):
    """The blocks with the smallest mean priority leave, a small share of all at once.

    The newest block of an actor stays: its items are still being completed."""

    def __init__(self, priorities: Priorities, share: float = 1 / 64) -> None:
        self._priorities, self._share = priorities, share

    def victims(self, store: ItemStore) -> Iterable[int]:
        shape = (store.blocks.num_blocks, store.items_per_block)
        masses = self._priorities.masses().reshape(shape).sum(axis=1)
        counts = store.valid.reshape(shape).sum(axis=1)
        mean = masses / np.maximum(counts, 1)
        mean[[stream.slot for stream in store.blocks.streams.values()]] = np.inf
        count = max(1, int(self._share * len(mean)))
        chosen = np.argpartition(mean, count - 1)[:count]
        found = [int(slot) for slot in chosen if mean[slot] < np.inf]
        return found or super().victims(store)
