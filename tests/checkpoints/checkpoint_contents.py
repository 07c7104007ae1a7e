# SPDX-License-Identifier: Apache-2.0
"""Checkpoint contents that follow from the step, so that a reader can tell right from wrong."""

from pathlib import Path

import numpy as np

from veldt.checkpoints.store import Checkpoint, CheckpointStore

CHUNK_BYTES = 256
Parts = dict[str, dict[str, np.ndarray]]


def store_in(directory: Path, keep: int = 2) -> CheckpointStore:
    """A store with chunks so small that a tiny replay takes four of them."""
    return CheckpointStore(directory, keep=keep, chunk_bytes=CHUNK_BYTES)


def contents(step: int) -> Parts:
    """A learner, and a replay ring of which only the row `step % 32` and row 31 change."""
    rows = (np.arange(32 * 32) // 4).astype(np.uint8).reshape(32, 32)
    rows[step % 32] = rows[31] = step % 251
    weights = np.random.default_rng(step).normal(size=(3, 4)).astype(np.float32)
    learner = {"weights": weights, "version": np.int64(step), "empty": np.zeros((0, 2))}
    return {"learner-0": learner, "replay-0": {"row": rows, "full": np.array([True, False])}}


def save(store: CheckpointStore, step: int) -> Path:
    return store.save(step, contents(step), {"step": step})


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


def assert_whole(checkpoint: Checkpoint | None) -> int:
    """The step of a checkpoint whose every array is what was saved at that step."""
    assert checkpoint.meta == {"step": checkpoint.step}
    expected = contents(checkpoint.step)
    assert checkpoint.parts == tuple(expected)
    for part in checkpoint.parts:
        assert_same(checkpoint.load(part), expected[part])
    return checkpoint.step
