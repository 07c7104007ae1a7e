# SPDX-License-Identifier: Apache-2.0
"""What transition and sequence stores share: validity, identity, age, eviction and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

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


class ItemStore(ABC):
    """Items cut out of blocks: item i belongs to block i // items_per_block.

    An item's id is its block's arrival number times `capacity` plus its index: ids grow, are never
    used twice, and show whether the item is still stored. The oldest block leaves when there is no
    room. `soft_cap` (Ape-X): `trim` evicts the oldest blocks above this number of items, but
    only every `trim_period` calls."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        fields: Sequence[str],
        frame_stack: int,
        soft_cap: int | None = None,
        trim_period: int = 1,
        per_row: bool = True,
    ) -> None:
        self.blocks = BlockStore(layout, capacity, fields, frame_stack)
        self.items_per_block = self.blocks.block_size if per_row else self.blocks.num_envs
        self.capacity = self.blocks.num_blocks * self.items_per_block
        self._soft_cap, self._trim_period, self._trims = soft_cap, trim_period, 0
        self.valid = np.zeros(self.capacity, bool)
        self.size = 0
        self.num_inserted = 0
        """Items ever inserted; ages are measured in them."""
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
        return state | {"counts": np.array([self.size, self.num_inserted, self._trims])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore into an empty store made with the same arguments."""
        self.blocks.load_state(entries_below("blocks.", state))
        for name, array in self._item_arrays().items():
            array[:] = state[f"items.{name}"]
        self.size, self.num_inserted, self._trims = (int(count) for count in state["counts"])

    def add(self, trajectory: dict[str, np.ndarray]) -> Changes:
        """Store one trajectory; its memory may be reused afterwards."""
        removed = self._evict() if self.blocks.slots.is_empty else NOTHING
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
        """Return to the soft cap now and then; called once per learner update."""
        removed = [NOTHING]
        self._trims += 1
        if self._soft_cap is not None and self._trims % self._trim_period == 0:
            while self.size > self._soft_cap:
                removed.append(self._evict())
        return Changes(removed=np.concatenate(removed))

    def end_streams(self) -> None:
        """After a resume no actor continues its episodes: each next trajectory begins a chain."""
        self.blocks.streams.clear()

    def _insert(self, indices: np.ndarray) -> None:
        self.valid[indices] = True
        self.size += indices.size
        self.num_inserted += indices.size

    def _invalidate(self, indices: np.ndarray) -> np.ndarray:
        self.valid[indices] = False
        self.size -= indices.size
        return indices

    def _evict(self) -> np.ndarray:
        """Free the oldest block and invalidate all items that need it."""
        removed = self._invalidate(self._valid_items([self.blocks.order[0]]))
        after = self.blocks.evict_oldest()
        if not after:
            return removed
        items = self._valid_items(after)
        return np.concatenate([removed, self._invalidate(items[~self._are_whole(items)])])

    @abstractmethod
    def _are_whole(self, items: np.ndarray) -> np.ndarray:
        """Whether all frames that these items need are still stored."""

    def _valid_items(self, slots: list[int]) -> np.ndarray:
        size = self.items_per_block
        parts = [np.flatnonzero(self.valid[s * size : (s + 1) * size]) + s * size for s in slots]
        return np.concatenate(parts)
