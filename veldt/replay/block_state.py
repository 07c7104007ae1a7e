# SPDX-License-Identifier: Apache-2.0
"""A block store as named arrays and back; memory that was never used is left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from veldt.replay.blocks import BlockStore, Stream
from veldt.replay.pool import Pool

_PER_BLOCK = ("uid", "following", "preceding", "tail", "versions")


def block_state(blocks: BlockStore) -> dict[str, np.ndarray]:
    """Everything needed to go on, as copies."""
    state = {name: getattr(blocks, name)[: blocks.slots.touched].copy() for name in _PER_BLOCK}
    for name, array in _per_entry(blocks):
        for part, span in _used(blocks).items():
            state[f"{name}.{part}"] = array[span].copy()
    for name, pool in _pools(blocks):
        state[f"pool.{name}"] = np.array([pool.touched, *pool.returned])
    for name, owned in (("own", blocks.spares_of), ("tail", blocks.tail_spares_of)):
        pairs = [(slot, entry) for slot, entries in owned.items() for entry in entries]
        state[f"spares.{name}"] = np.array(pairs, np.int64).reshape(-1, 2)
    streams = [(actor, *vars(stream).values()) for actor, stream in blocks.streams.items()]
    state["streams"] = np.array(streams, np.int64).reshape(-1, 5)
    state["order"] = np.array(blocks.order, np.int64).reshape(-1, 2)
    counts = [blocks.blocks_added, blocks.gaps, *blocks.dropped.values()]
    state["counts"] = np.array(counts, np.int64)
    return state


def load_block_state(blocks: BlockStore, state: dict[str, np.ndarray]) -> None:
    """Restore into a store of the same layout and capacity."""
    for name, pool in _pools(blocks):
        touched, *returned = state[f"pool.{name}"].tolist()
        if touched > pool.size:
            raise ValueError(
                f"the saved replay has {touched} {name}, this one has room for {pool.size};"
                " resume with the same capacity"
            )
        pool.touched, pool.returned = touched, returned
    for name in _PER_BLOCK:
        getattr(blocks, name)[: blocks.slots.touched] = state[name]
    for name, array in _per_entry(blocks):
        for part, span in _used(blocks).items():
            array[span] = state[f"{name}.{part}"]
    for name, owned in (("own", blocks.spares_of), ("tail", blocks.tail_spares_of)):
        owned.clear()
        for slot, entry in state[f"spares.{name}"].tolist():
            owned.setdefault(slot, []).append(entry)
    blocks.streams = {row[0]: Stream(*row[1:]) for row in state["streams"].tolist()}
    blocks.order = deque((slot, uid) for slot, uid in state["order"].tolist())
    blocks.blocks_added, blocks.gaps, *dropped = state["counts"].tolist()
    blocks.dropped = dict(zip(blocks.dropped, dropped, strict=True))


def _per_entry(blocks: BlockStore) -> Iterator[tuple[str, np.ndarray]]:
    yield "live", blocks.live
    yield "whole", blocks.whole
    for name, array in blocks.arrays.items():
        yield f"field.{name}", array
    for name, stack in blocks.stacks.items():
        yield f"frames.{name}", stack.frames
        yield f"places.{name}", stack.places


def _pools(blocks: BlockStore) -> Iterator[tuple[str, Pool]]:
    yield "blocks", blocks.slots
    yield "tails", blocks.tails
    yield "spares", blocks.spares


def _used(blocks: BlockStore) -> dict[str, slice]:
    """Entries that were ever written."""
    tail, spare = blocks.first_tail, blocks.first_spare
    return {
        "rows": slice(0, blocks.slots.touched * blocks.block_size),
        "tails": slice(tail, tail + blocks.tails.touched * blocks.num_envs),
        "spares": slice(spare, spare + blocks.spares.touched),
    }
