# SPDX-License-Identifier: Apache-2.0
"""What transition and sequence stores share: validity, identity, age, eviction and state.

Removers choose which blocks leave a full replay: whole trajectories, the unit of storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from veldt.replay.blocks import BlockStore
from veldt.role import entries_below
from veldt.types import Layout

NOTHING = np.empty(0, np.int64)


@dataclass
class Changes:
    """Items that appeared and vanished; `removed` comes first, because indices are reused."""

    inserted: np.ndarray = field(default_factory=lambda: NOTHING)
    removed: np.ndarray = field(default_factory=lambda: NOTHING)


class Priorities(Protocol):
    """A sampler that knows the probability of each item."""

    def masses(self) -> np.ndarray: ...


class Remover(Protocol):
    """Chooses blocks; the store evicts them."""

    def victims(self, store: ItemStore) -> Iterable[int]:
        """At least one block, called when there is no room for another."""

    def excess(self, store: ItemStore) -> Iterator[int]:
        """Blocks to evict after a learner update; read lazily, while they are evicted."""

    def state(self) -> dict[str, np.ndarray]: ...

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class Fifo:
    """Hard cap: the oldest block leaves when there is no room."""

    def victims(self, store: ItemStore) -> Iterable[int]:
        return [store.blocks.oldest()]

    def excess(self, store: ItemStore) -> Iterator[int]:
        return iter(())

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...


class SoftCap(Fifo):
    """Ape-X: blocks above the cap leave only every `every_calls` updates, the oldest first.

    The store's capacity should be well above `max_items`."""

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
    """The blocks with the lowest mean priority leave, a small share of all at once.

    The newest block of an actor stays, because its items are still being completed."""

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


class ItemStore(ABC):
    """Items cut out of blocks: item i belongs to block i // items_per_block.

    An item's id is its block's arrival number times `capacity` plus its index: ids grow, are never
    used twice, and show whether the item is still stored."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        fields: Sequence[str],
        frame_stack: int,
        remover: Remover | None,
        per_row: bool = True,
    ) -> None:
        self.blocks = BlockStore(layout, capacity, fields, frame_stack)
        self.items_per_block = self.blocks.block_size if per_row else self.blocks.num_envs
        self.capacity = self.blocks.num_blocks * self.items_per_block
        self.remover: Remover = remover or Fifo()
        self.valid = np.zeros(self.capacity, bool)
        self.size = 0
        self.num_inserted = 0
        """Items ever inserted; ages are measured in them."""
        self._reach_before = self._reach_after = 0
        """Rows of a chain before and after a block that may need it."""
        self._inserted_at = np.zeros(self.blocks.num_blocks, np.int64)

    def __len__(self) -> int:
        return self.size

    @property
    def range(self) -> int:
        """All valid items have an index below this."""
        return self.blocks.slots.touched * self.items_per_block

    def ids(self, indices: np.ndarray) -> np.ndarray:
        return self.blocks.uid[indices // self.items_per_block] * self.capacity + indices

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the items that are still stored, and which of `ids` those are."""
        uids, indices = np.divmod(ids, self.capacity)
        present = self.blocks.uid[indices // self.items_per_block] == uids
        present &= self.valid[indices]
        return indices[present], present

    def age(self, indices: np.ndarray) -> np.ndarray:
        """Items inserted since the block of each item was added."""
        return self.num_inserted - self._inserted_at[indices // self.items_per_block]

    def _item_arrays(self) -> dict[str, np.ndarray]:
        """Views of the used part of arrays with one row per item or per block."""
        used = self.blocks.slots.touched
        return {"valid": self.valid[: self.range], "inserted_at": self._inserted_at[:used]}

    def state(self) -> dict[str, np.ndarray]:
        """All that a restart needs, as copies; memory that was never used is left out."""
        state = {f"blocks.{name}": array for name, array in self.blocks.state().items()}
        state |= {f"items.{name}": array.copy() for name, array in self._item_arrays().items()}
        state |= {f"remover.{name}": array for name, array in self.remover.state().items()}
        return state | {"counts": np.array([self.size, self.num_inserted])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore into an empty store made with the same arguments."""
        self.blocks.load_state(entries_below("blocks.", state))
        for name, array in self._item_arrays().items():
            array[:] = state[f"items.{name}"]
        self.remover.load_state(entries_below("remover.", state))
        self.size, self.num_inserted = (int(count) for count in state["counts"])

    def add(self, trajectory: dict[str, np.ndarray]) -> Changes:
        """Store one trajectory; its memory may be reused afterwards."""
        if not self.blocks.accepts(trajectory):
            return Changes()
        removed = self._make_room()
        return Changes(self._take_in(trajectory, self.blocks.predecessor(trajectory)), removed)

    @abstractmethod
    def _take_in(self, trajectory: dict[str, np.ndarray], previous: int) -> np.ndarray:
        """Store a trajectory that continues the block `previous` (or FREE); returns new items."""

    @abstractmethod
    def batch_layout(self, batch_size: int) -> Layout:
        """Fields that `sample` writes."""

    def sample(
        self, indices: np.ndarray, out: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Copy the items at `indices` into `out` (contiguous arrays, as in `batch_layout`)."""
        if out is None:
            layout = self.batch_layout(len(indices))
            out = {name: np.empty(spec.shape, spec.dtype) for name, spec in layout.items()}
        self._copy(indices, out)
        out["age"][:] = self.age(indices)
        out["item_id"][:] = self.ids(indices)
        return out

    @abstractmethod
    def _copy(self, indices: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Write all fields of a batch except ages and ids."""

    def trim(self) -> Changes:
        """Evict what the remover wants gone; called once per learner update."""
        removed = [self._evict(slot) for slot in self.remover.excess(self)]
        return Changes(removed=np.concatenate(removed)) if removed else Changes()

    def end_streams(self) -> Changes:
        """After a resume no actor continues its episodes: each next trajectory begins a chain."""
        self.blocks.streams.clear()
        return Changes()

    def _make_room(self) -> np.ndarray:
        if not self.blocks.slots.is_empty:
            return NOTHING
        removed = [self._evict(slot) for slot in self.remover.victims(self)]
        return removed[0] if len(removed) == 1 else np.concatenate(removed)

    def _insert(self, indices: np.ndarray) -> None:
        self.valid[indices] = True
        self.size += indices.size
        self.num_inserted += indices.size

    def _invalidate(self, indices: np.ndarray) -> np.ndarray:
        self.valid[indices] = False
        self.size -= indices.size
        return indices

    def _evict(self, slot: int) -> np.ndarray:
        """Free a block and invalidate all items that need it."""
        before = self.blocks.walk(self.blocks.preceding, slot, self._reach_before)
        after = self.blocks.walk(self.blocks.following, slot, self._reach_after)
        removed = self._invalidate(self._valid_items([slot]))
        self.blocks.evict(slot)
        if not before and not after:
            return removed
        broken = [self._invalidate(items) for items in self._broken_items(before, after)]
        return np.concatenate([removed, *broken])

    @abstractmethod
    def _broken_items(self, before: list[int], after: list[int]) -> list[np.ndarray]:
        """Valid items of these neighbours in the chain that need the evicted block."""

    def _valid_items(self, slots: list[int]) -> np.ndarray:
        size = self.items_per_block
        parts = [np.flatnonzero(self.valid[s * size : (s + 1) * size]) + s * size for s in slots]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
