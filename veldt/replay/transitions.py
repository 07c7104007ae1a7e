# SPDX-License-Identifier: Apache-2.0
"""N-step transitions cut out of trajectories as they come, no observation stored twice.

Reward sums, discounts and the place of the next observation are worked out when rows arrive, so
that sampling is nothing but copies. Windows run on into the actor's next trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veldt.replay.blocks import FREE
from veldt.replay.items import Changes, ItemStore
from veldt.replay.layouts import transition_layout
from veldt.replay.n_step import Windows, n_step_windows
from veldt.replay.removers import Remover
from veldt.types import PROVENANCE_ACTOR, Layout

_ROW_INFORMATION = ("reward", "terminated", "truncated", "ignored", "first")


@dataclass
class _Recent:
    """The last rows of one actor, whose windows may still grow."""

    items: np.ndarray
    """Index of each row's items, [m, E]."""
    uids: np.ndarray
    rows: dict[str, np.ndarray]
    final: np.ndarray
    done: np.ndarray
    open: np.ndarray
    """Not complete, but right as a shorter window if nothing follows."""


class TransitionStore(ItemStore):
    """Transitions (s, a, sum of n rewards, discount, s'), one possible item per stored row.

    Reset rows never start a window. A truncated episode bootstraps from its true last observation;
    a terminated one has discount 0, and its next observation means nothing. When an actor's next
    trajectory never comes, the windows at its end become shorter ones. `outputs` names fields of
    the policy to keep. `wait_for_outputs`: an item appears only once the row it bootstraps from has
    outputs too, so that `td_errors` can be had without asking a network."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        frame_stack: int = 1,
        outputs: Sequence[str] = (),
        wait_for_outputs: bool = False,
        remover: Remover | None = None,
    ) -> None:
        super().__init__(layout, capacity, ("action", *outputs), frame_stack, remover)
        self.n_step, self.discount, self._wait = n_step, discount, wait_for_outputs
        self._outputs, self._layout = tuple(outputs), layout
        self._reach_before = n_step
        self._reach_after = frame_stack - 1
        self._reward = np.zeros(self.capacity, np.float32)
        self._discount = np.zeros(self.capacity, np.float32)
        self._next = np.zeros(self.capacity, np.int32)
        self._recent: dict[int, _Recent] = {}

    def add(self, trajectory: dict[str, np.ndarray]) -> Changes:
        """Ingest one trajectory slot, which may be reused afterwards."""
        if not self.blocks.accepts(trajectory):
            return Changes()
        removed = self._make_room()
        actor = int(trajectory["provenance"].reshape(-1)[PROVENANCE_ACTOR])
        previous = self.blocks.predecessor(trajectory)
        recent = self._recent.pop(actor, None)
        if recent is not None:
            recent = self._still_stored(recent)
        closed = None
        if previous == FREE and recent is not None:
            closed, recent = self._close(recent), None
        slot = self.blocks.put(trajectory, previous)
        self._inserted_at[slot] = self.num_inserted
        inserted = self._cut(trajectory, slot, recent, actor)
        if closed is not None and closed.size:
            inserted = np.concatenate([closed, inserted])
        return Changes(inserted, removed)

    def end_streams(self) -> Changes:
        super().end_streams()
        recents = [self._still_stored(recent) for recent in self._recent.values()]
        self._recent.clear()
        closed = [self._close(recent) for recent in recents if recent is not None]
        return Changes(np.concatenate(closed)) if closed else Changes()

    def _still_stored(self, recent: _Recent) -> _Recent | None:
        """Without the rows that were evicted, and all before them."""
        slots = recent.items[:, 0] // self.items_per_block
        gone = np.flatnonzero(self.blocks.uid[slots] != recent.uids)
        if not gone.size:
            return recent
        keep = slice(int(gone[-1]) + 1, None)
        if keep.start == len(slots):
            return None
        rows = {name: array[keep] for name, array in recent.rows.items()}
        final, done, open_ = recent.final[keep], recent.done[keep], recent.open[keep]
        return _Recent(recent.items[keep], recent.uids[keep], rows, final, done, open_)

    def _close(self, recent: _Recent) -> np.ndarray:
        """Nothing follows: what is open becomes an item as it is."""
        items = recent.items[recent.open & ~recent.done]
        items = items[self.blocks.whole[items] & self.blocks.whole[self._next[items]]]
        self._insert(items)
        return items

    def _cut(
        self, trajectory: dict[str, np.ndarray], slot: int, recent: _Recent | None, actor: int
    ) -> np.ndarray:
        """Write the windows of a new block and of the rows before it; the items that appeared."""
        blocks = self.blocks
        steps, envs = blocks.num_steps, blocks.num_envs
        begin = slot * self.items_per_block
        items = np.arange(begin, begin + blocks.block_size).reshape(steps, envs)
        rows = {name: trajectory[name][:-1] for name in _ROW_INFORMATION}
        final = self._keep_finals(trajectory, slot)
        done = np.zeros((steps, envs), bool)
        uids = np.full(steps, blocks.uid[slot])
        if recent is not None:
            items = np.concatenate([recent.items, items])
            rows = {name: np.concatenate([recent.rows[name], rows[name]]) for name in rows}
            final = np.concatenate([recent.final, final])
            done = np.concatenate([recent.done, done])
            uids = np.concatenate([recent.uids, uids])
        windows = self._windows(rows, trajectory["first"][-1])
        usable, open_ = self._write(windows, items, rows, final, blocks.tail_entries(slot))
        fresh = items[usable & ~done]
        self._insert(fresh)
        # Row T moves when the next block comes: all windows that may end there are written again.
        last = slice(-self.n_step, None)
        kept = {name: array[last].copy() for name, array in rows.items()}
        parts = (final[last].copy(), (done | usable)[last], open_[last])
        self._recent[actor] = _Recent(items[last], uids[last], kept, *parts)
        return fresh

    def _keep_finals(self, trajectory: dict[str, np.ndarray], slot: int) -> np.ndarray:
        """Entries of true last observations [T, E] where they lie beside the rows (SAME_STEP)."""
        final = np.full((self.blocks.num_steps, self.blocks.num_envs), FREE)
        if self.blocks.final_leaves:
            truncated = trajectory["truncated"][:-1] & ~trajectory["terminated"][:-1]
            for row, env in np.argwhere(truncated):
                final[row, env] = self.blocks.put_final(trajectory, slot, row, env)
        return final

    def _windows(self, rows: dict[str, np.ndarray], first_behind: np.ndarray) -> Windows:
        ends = rows["terminated"] | rows["truncated"]
        ends[:-1] |= rows["ignored"][1:]
        severed = np.empty_like(ends)
        severed[:-1] = rows["first"][1:]
        severed[-1] = first_behind
        severed &= ~ends
        return n_step_windows(
            rows["reward"],
            rows["terminated"],
            ends,
            ~rows["ignored"],
            severed,
            self.n_step,
            self.discount,
        )

    def _write(
        self,
        windows: Windows,
        items: np.ndarray,
        rows: dict[str, np.ndarray],
        final: np.ndarray,
        behind: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Store windows at `items` [M, E]; which are whole, and which are open."""
        num_rows, num_envs = items.shape
        entries = np.concatenate([items, behind[None]])
        ahead = np.arange(num_rows)[:, None] + windows.length
        columns = np.arange(num_envs)
        following = entries[ahead, columns]
        usable, open_ = windows.complete, windows.open
        if self.blocks.final_leaves:
            last = np.maximum(ahead - 1, 0)
            truncated = (rows["truncated"] & ~rows["terminated"])[last, columns] & windows.ended
            following = np.where(truncated, final[last, columns], following)
            usable = usable & (following != FREE)
        self._reward[items] = windows.reward
        self._discount[items] = windows.discount
        self._next[items] = following
        if self._wait:
            waits = (following >= behind[0]) & (following <= behind[-1]) & (windows.discount > 0)
            usable, open_ = usable & ~waits, np.zeros_like(open_)
        if self.blocks.stacks:
            usable = usable & self.blocks.whole[items] & self.blocks.whole[following]
        return usable, open_

    def _broken_items(self, before: list[int], after: list[int]) -> list[np.ndarray]:
        """Windows that ran into the lost block, and stacks that needed its frames."""
        blocks, found = self.blocks, []
        if before:
            items = self._valid_items(before)
            following = self._next[items]
            inside = np.isin(following // blocks.block_size, before)
            found.append(items[~inside & (following < blocks.first_spare)])
        if after and blocks.stacks:
            items = self._valid_items(after)
            found.append(items[~blocks.whole[items]])
        return found

    def _item_arrays(self) -> dict[str, np.ndarray]:
        used = self.range
        own = {"reward": self._reward[:used], "discount": self._discount[:used]}
        return super()._item_arrays() | own | {"next": self._next[:used]}

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        for actor, recent in self._recent.items():
            parts = {**vars(recent), **{f"rows.{k}": v for k, v in recent.rows.items()}}
            del parts["rows"]
            state |= {f"recent/{actor}/{name}": array for name, array in parts.items()}
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        super().load_state(state)
        parts: dict[int, dict[str, np.ndarray]] = {}
        for key, array in state.items():
            if key.startswith("recent/"):
                _, number, name = key.split("/")
                parts.setdefault(int(number), {})[name] = array
        self._recent = {}
        for actor, arrays in parts.items():
            rows = {k[5:]: arrays.pop(k) for k in list(arrays) if k.startswith("rows.")}
            self._recent[actor] = _Recent(rows=rows, **arrays)

    def batch_layout(self, batch_size: int) -> Layout:
        """What `sample` writes."""
        return transition_layout(self._layout, batch_size, self._outputs)

    def sample(
        self, indices: np.ndarray, out: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Copy the items at `indices` into `out` (contiguous arrays, as in `batch_layout`)."""
        if out is None:
            layout = self.batch_layout(len(indices))
            out = {name: np.empty(spec.shape, spec.dtype) for name, spec in layout.items()}
        blocks = self.blocks
        following = self._next[indices].astype(np.int64)
        for name in blocks.leaves:
            blocks.gather(name, indices, out[name])
            blocks.gather(name, following, out["next_" + name])
        for name in ("action", *self._outputs):
            blocks.gather(name, indices, out[name])
        np.take(self._reward, indices, out=out["reward"], mode="clip")
        np.take(self._discount, indices, out=out["discount"], mode="clip")
        rows = blocks.versions.reshape(-1)
        np.take(rows, indices // blocks.num_envs, out=out["parameter_version"], mode="clip")
        out["age"][:] = self.age(indices)
        out["item_id"][:] = self.ids(indices)
        return out

    def output(self, name: str, indices: np.ndarray) -> np.ndarray:
        """A stored output of the rows where these items start."""
        return self.blocks.arrays[name][indices]

    def td_errors(self, indices: np.ndarray, value: str, bootstrap: str) -> np.ndarray:
        """|reward sum + discount * bootstrap(s') - value(s)| from stored outputs.

        Where the last observation lies beside the rows (SAME_STEP truncation) the policy never saw
        it; the bootstrap is then the one of the row before."""
        values, bootstraps = self.blocks.arrays[value], self.blocks.arrays[bootstrap]
        target = self._reward[indices] + self._discount[indices] * bootstraps[self._next[indices]]
        return np.abs(target - values[indices])
