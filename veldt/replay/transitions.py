# SPDX-License-Identifier: Apache-2.0
"""N-step transitions cut out of trajectories, with no observation stored twice.

Reward sums, discounts and the place of the next observation are computed when rows arrive, so that
sampling only copies. Windows continue into the actor's next trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veldt.replay.blocks import FREE, observation_leaves, origin
from veldt.replay.items import ItemStore
from veldt.types import Field, Layout

_ROW_INFORMATION = ("reward", "terminated", "truncated", "ignored", "first")

Rows = dict[str, np.ndarray]
"""Rows of one actor [M, E]: what the environments said, then `item` (index), `uid` (of the block),
`final` (entry of the true last observation) and `done` (is an item already)."""


def transition_layout(trajectories: Layout, batch_size: int, outputs: Sequence[str] = ()) -> Layout:
    """A batch of transitions [B, ...] cut out of `trajectories`."""
    fields: dict[str, Field] = {}
    for name in observation_leaves(trajectories):
        spec = trajectories[name]
        fields[name] = fields["next_" + name] = Field((batch_size, *spec.shape[2:]), spec.dtype)
    for name in ("action", *outputs):
        spec = trajectories[name]
        fields[name] = Field((batch_size, *spec.shape[2:]), spec.dtype)
    for name in ("reward", "discount"):
        fields[name] = Field((batch_size,), "float32")
    for name in ("parameter_version", "age", "item_id"):
        fields[name] = Field((batch_size,), "int64")
    return Layout(tuple(fields.items()))


@dataclass
class Windows:
    """One window per start row [M, E]. Row s + `length` is the one it bootstraps from."""

    reward: np.ndarray
    """sum over k < length of discount^k * reward[s + k], float64."""
    discount: np.ndarray
    """discount^length; 0 where the episode terminated inside."""
    length: np.ndarray
    ended: np.ndarray
    """The last step of the window ended the episode."""
    complete: np.ndarray
    """It has n steps or ended; others may still grow."""


class TransitionStore(ItemStore):
    """Transitions (s, a, sum of n rewards, discount, s'), one possible item per stored row.

    Reset rows never start a window. A truncated episode bootstraps from its true last observation;
    a terminated one has discount 0 and a meaningless next observation. If an actor's next
    trajectory never comes, its last rows start no window. `outputs` names fields of the policy to
    keep. `wait_for_outputs`: an item appears only once the row it bootstraps from has outputs too,
    so that `td_errors` needs no network."""

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
        soft_cap: int | None = None,
        trim_period: int = 1,
    ) -> None:
        fields = ("action", *outputs)
        super().__init__(layout, capacity, fields, frame_stack, soft_cap, trim_period)
        self.n_step, self.discount, self._wait = n_step, discount, wait_for_outputs
        self._outputs, self._layout = tuple(outputs), layout
        self._reward = np.zeros(self.capacity, np.float32)
        self._discount = np.zeros(self.capacity, np.float32)
        self._next = np.zeros(self.capacity, np.int32)
        self._recent: dict[int, Rows] = {}
        """The last rows of each actor, whose windows may still grow."""

    def _take_in(self, trajectory: dict[str, np.ndarray], previous: int) -> np.ndarray:
        actor, _, _ = origin(trajectory)
        recent = self._recent.pop(actor, {})
        recent = {} if previous == FREE else self._still_stored(recent)
        slot = self.blocks.put(trajectory, previous)
        self._inserted_at[slot] = self.num_inserted
        return self._cut(trajectory, slot, recent, actor)

    def _still_stored(self, recent: Rows) -> Rows:
        """Without the rows that were evicted, and all before them."""
        slots = recent["item"][:, 0] // self.items_per_block
        gone = np.flatnonzero(self.blocks.uid[slots] != recent["uid"][:, 0])
        begin = int(gone[-1]) + 1 if gone.size else 0
        return {name: array[begin:] for name, array in recent.items()}

    def _cut(
        self, trajectory: dict[str, np.ndarray], slot: int, recent: Rows, actor: int
    ) -> np.ndarray:
        """Write the windows of a new block and of the rows before it; the items that appeared."""
        blocks = self.blocks
        shape = (blocks.num_steps, blocks.num_envs)
        begin = slot * self.items_per_block
        rows = {name: trajectory[name][:-1] for name in _ROW_INFORMATION}
        rows["item"] = np.arange(begin, begin + blocks.block_size).reshape(shape)
        rows["uid"] = np.full(shape, blocks.uid[slot])
        rows["final"] = blocks.put_finals(trajectory, slot)
        rows["done"] = np.zeros(shape, bool)
        if recent:
            rows = {name: np.concatenate([recent[name], rows[name]]) for name in rows}
        windows = self._windows(rows, trajectory["first"][-1])
        usable = self._write(windows, rows, blocks.tail_entries(slot))
        fresh = rows["item"][usable & ~rows["done"]]
        self._insert(fresh)
        rows["done"] = rows["done"] | usable
        # Row T moves when the next block comes: all windows that may end there are written again.
        self._recent[actor] = {name: array[-self.n_step :].copy() for name, array in rows.items()}
        return fresh

    def _windows(self, rows: Rows, first_behind: np.ndarray) -> Windows:
        """Windows that start at each of M rows; row M, which begins an episode where
        `first_behind`, only bootstraps."""
        reward, terminated, active = rows["reward"], rows["terminated"], ~rows["ignored"]
        ends = terminated | rows["truncated"]
        ends[:-1] |= rows["ignored"][1:]
        # Where the next row does not follow from this one although no end was announced, a window
        # never becomes complete.
        stops = np.concatenate([rows["first"][1:], first_behind[None]]) | ends
        total, factor = np.zeros(reward.shape), np.ones(reward.shape)
        length = np.zeros(reward.shape, np.int64)
        ended = np.zeros(reward.shape, bool)
        growth = np.where(terminated, 0.0, self.discount)
        for ahead in range(min(self.n_step, len(reward))):
            starts = len(reward) - ahead
            running = active[:starts]
            total[:starts] += factor[:starts] * reward[ahead:] * running
            length[:starts] += running
            factor[:starts] *= np.where(running, growth[ahead:], 1.0)
            ended[:starts] |= running & ends[ahead:]
            active[:starts] = running & ~stops[ahead:]
        return Windows(total, factor, length, ended, ended | (active & (length == self.n_step)))

    def _write(self, windows: Windows, rows: Rows, behind: np.ndarray) -> np.ndarray:
        """Store the window of each row; which of them are whole [M, E]."""
        items = rows["item"]
        num_rows, num_envs = items.shape
        entries = np.concatenate([items, behind[None]])
        ahead = np.arange(num_rows)[:, None] + windows.length
        columns = np.arange(num_envs)
        following = entries[ahead, columns]
        usable = windows.complete
        if self.blocks.final_leaves:
            last = np.maximum(ahead - 1, 0)
            truncated = (rows["truncated"] & ~rows["terminated"])[last, columns] & windows.ended
            following = np.where(truncated, rows["final"][last, columns], following)
            usable = usable & (following != FREE)
        self._reward[items] = windows.reward
        self._discount[items] = windows.discount
        self._next[items] = following
        if self._wait:
            waits = (following >= behind[0]) & (following <= behind[-1]) & (windows.discount > 0)
            usable = usable & ~waits
        if self.blocks.stacks:
            usable = usable & self._are_whole(items)
        return usable

    def _are_whole(self, items: np.ndarray) -> np.ndarray:
        return self.blocks.whole[items] & self.blocks.whole[self._next[items]]

    def _item_arrays(self) -> dict[str, np.ndarray]:
        used = self.range
        own = {"reward": self._reward[:used], "discount": self._discount[:used]}
        return super()._item_arrays() | own | {"next": self._next[:used]}

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        for actor, rows in self._recent.items():
            state |= {f"recent/{actor}/{name}": array for name, array in rows.items()}
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        super().load_state(state)
        self._recent = {}
        for key, array in state.items():
            if key.startswith("recent/"):
                _, actor, name = key.split("/")
                self._recent.setdefault(int(actor), {})[name] = array

    def batch_layout(self, batch_size: int) -> Layout:
        """What `sample` writes."""
        return transition_layout(self._layout, batch_size, self._outputs)

    def _copy(self, indices: np.ndarray, out: dict[str, np.ndarray]) -> None:
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

    def td_errors(self, indices: np.ndarray, value: str, bootstrap: str) -> np.ndarray:
        """|reward sum + discount * bootstrap(s') - value(s)| from stored outputs.

        With SAME_STEP resets the policy never saw the last observation of a truncated episode; the
        bootstrap is then that of the row before."""
        values, bootstraps = self.blocks.arrays[value], self.blocks.arrays[bootstrap]
        target = self._reward[indices] + self._discount[indices] * bootstraps[self._next[indices]]
        return np.abs(target - values[indices])
