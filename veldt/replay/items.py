# SPDX-License-Identifier: Apache-2.0
"""What transition and sequence stores share: validity, identity, age, eviction and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from veldt.replay.block_state import block_state, load_block_state
from veldt.replay.blocks import BlockStore
from veldt.replay.removers import Fifo, Remover
from veldt.types import Layout

NOTHING = np.empty(0, np.int64)


@dataclass
class Changes:
    """Items that appeared and vanished. Tell the sampler of `removed` first: places are reused."""

    inserted: np.ndarray = field(default_factory=lambda: NOTHING)
    removed: np.ndarray = field(default_factory=lambda: NOTHING)


class ItemStore(ABC):
    """Items cut out of blocks: item i lies in block i // items_per_block.

    An item's id is its block's number of arrival times `capacity` plus its index: ids grow, are
    never used twice, and tell by themselves whether the item is still there."""

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
        """Items ever inserted; the clock that ages are measured with."""
        self._reach_before = self._reach_after = 0
        """How many rows of a chain before and after a block may need it."""
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
        """Indices of the items that are still there, and which of `ids` those are."""
        uids, indices = np.divmod(ids, self.capacity)
        present = self.blocks.uid[indices // self.items_per_block] == uids
        present &= self.valid[indices]
        return indices[present], present

    def age(self, indices: np.ndarray) -> np.ndarray:
        """How many items have been inserted since each item's block came."""
        return self.num_inserted - self._inserted_at[indices // self.items_per_block]

    def _item_arrays(self) -> dict[str, np.ndarray]:
        """Arrays with one row per item or per block, as views of the part in use."""
        used = self.blocks.slots.touched
        return {"valid": self.valid[: self.range], "inserted_at": self._inserted_at[:used]}

    def state(self) -> dict[str, np.ndarray]:
        """All that a restart needs, as copies; unused memory is left out."""
        state = {f"blocks.{name}": array for name, array in block_state(self.blocks).items()}
        state |= {f"items.{name}": array.copy() for name, array in self._item_arrays().items()}
        state |= {f"remover.{name}": array for name, array in self.remover.state().items()}
        return state | {"counts": np.array([self.size, self.num_inserted])}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore into an empty store made with the same arguments."""
        load_block_state(self.blocks, _below("blocks.", state))
        for name, array in self._item_arrays().items():
            array[:] = state[f"items.{name}"]
        self.remover.load_state(_below("remover.", state))
        self.size, self.num_inserted = (int(count) for count in state["counts"])

    def add(self, trajectory: dict[str, np.ndarray]) -> Changes:
        """Ingest one trajectory slot, which may be reused afterwards."""
        if not self.blocks.accepts(trajectory):
            return Changes()
        removed = self._make_room()
        return Changes(self._take_in(trajectory, self.blocks.predecessor(trajectory)), removed)

    @abstractmethod
    def _take_in(self, trajectory: dict[str, np.ndarray], previous: int) -> np.ndarray:
        """Store a trajectory behind the block `previous`, or FREE; the items that appeared."""

    @abstractmethod
    def batch_layout(self, batch_size: int) -> Layout:
        """What `sample` writes."""

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
        """All of a batch but ages and ids."""

    def trim(self) -> Changes:
        """Let the remover do its periodic work; call once per learner update."""
        removed = [self._evict(slot) for slot in self.remover.excess(self)]
        return Changes(removed=np.concatenate(removed)) if removed else Changes()

    def end_streams(self) -> Changes:
        """No actor goes on where it was (after a resume): every next trajectory begins a chain."""
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
        """Free a block; all items that need it vanish."""
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
        """Valid items of these neighbours in the chain that need a block just evicted."""

    def _valid_items(self, slots: list[int]) -> np.ndarray:
        size = self.items_per_block
        parts = [np.flatnonzero(self.valid[s * size : (s + 1) * size]) + s * size for s in slots]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _below(prefix: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = state.items()
    return {name.removeprefix(prefix): array for name, array in found if name.startswith(prefix)}
