# SPDX-License-Identifier: Apache-2.0
"""What goes into a checkpoint comes out bit for bit, and the store keeps its rules."""

import os
from pathlib import Path

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from checkpoint_contents import assert_same, assert_whole, save, store_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veldt.checkpoints.store import CheckpointError, CheckpointStore

DTYPES = [np.dtype(code) for code in "?bhilBHILefd"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays_of.arrays(
        dtype, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=9)
    )
)
NAMES = st.text(max_size=20).filter(lambda name: name.isprintable() and name != "__metadata__")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrays=st.dictionaries(NAMES, ARRAYS, max_size=6), step=st.integers(0, 10**12 - 1))
def test_every_dtype_and_shape_comes_back_exactly(tmp_path_factory, arrays, step):
    store = store_in(tmp_path_factory.mktemp("run"))
    store.save(step, {"node": arrays}, {})
    checkpoint = store.newest()
    assert checkpoint.step == step
    assert_same(checkpoint.load("node"), arrays)


@pytest.mark.parametrize("rows", [3, 300])
def test_memory_order_and_byte_order_do_not_matter(tmp_path, rows):
    plain = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4)
    given_arrays = {
        "transposed": np.asfortranarray(plain),
        "every_second": np.repeat(plain, 2, axis=0)[::2],
        "big_endian": plain.astype(">i4"),
        "python_number": 1.5,
    }
    store = store_in(tmp_path)
    store.save(1, {"node": given_arrays}, {})
    loaded = store.newest().load("node")
    assert all(array.flags.writeable for array in loaded.values())
    for name in ("transposed", "every_second", "big_endian"):
        np.testing.assert_array_equal(loaded[name], plain)
        assert loaded[name].dtype == np.int32
    assert loaded["python_number"] == np.float64(1.5)


def test_meta_and_parts_come_back(tmp_path):
    store, meta = store_in(tmp_path), {"gamma": 0.99, "note": "ünïcode", "nothing": None}
    store.save(7, {"a+b": {"n": np.array(1)}, "a b": {"n": np.array(2)}}, meta)
    checkpoint = store.newest()
    assert (checkpoint.meta, checkpoint.parts) == (meta, ("a+b", "a b"))
    assert [int(checkpoint.load(name)["n"]) for name in checkpoint.parts] == [1, 2]
    with pytest.raises(CheckpointError, match="no part 'c'; its parts are: a\\+b"):
        checkpoint.load("c")


@pytest.mark.parametrize(
    ("part", "arrays", "meta", "message"),
    [
        ("../up", {}, {}, "cannot name a part"),
        ("node", {"o": np.array([{}])}, {}, "'o' of part 'node' is object"),
        ("node", {"c": np.zeros(1, complex)}, {}, "is complex128"),
        ("node", {"__metadata__": np.zeros(1)}, {}, "cannot name an array"),
        ("node", {str(i): np.zeros(1) for i in range(10_001)}, {}, "10001 arrays"),
        ("node", {}, {"array": np.zeros(1)}, "not JSON serializable"),
        ("node", {}, {"long": "x" * 2**24}, "bytes of JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path, part, arrays, meta, message
):
    store = store_in(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match=message):
        store.save(2, {part: arrays}, meta)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000000000001"]


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_last_ones_are_kept(tmp_path, keep):
    store = store_in(tmp_path, keep)
    for step in (5, 10, 200, 3000):
        save(store, step)
    kept = [f"checkpoint-{step:012d}" for step in (5, 10, 200, 3000)[-keep:]]
    assert sorted(os.listdir(tmp_path)) == kept
    assert assert_whole(store.newest()) == 3000


def test_the_same_step_saved_again_wins(tmp_path):
    store = store_in(tmp_path)
    for value in range(12):
        store.save(4, {"node": {"n": np.array(value)}}, {})
    assert store.newest().load("node")["n"] == 11
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint-000000000004.10",
        "checkpoint-000000000004.11",
    ]


def test_going_back_behind_a_valid_checkpoint_is_refused(tmp_path):
    save(store_in(tmp_path), 100)
    with pytest.raises(CheckpointError, match="newer than step 50; resume from it"):
        save(store_in(tmp_path), 50)


def test_a_run_that_fell_back_saves_on_although_the_damaged_one_is_newer(tmp_path):
    store = store_in(tmp_path)
    save(store, 100)
    (save(store, 200) / "meta.json").write_text("{}")
    for resumed in (store_in(tmp_path), store_in(tmp_path)):
        step = assert_whole(resumed.newest()) + 10
        save(resumed, step)
        assert assert_whole(resumed.newest()) == step
    for step in (210, 220):
        save(resumed, step)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{step:012d}" for step in (210, 220)]


def test_the_rename_is_durable_when_a_save_returns(tmp_path, monkeypatch):
    seen: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        "veldt.checkpoints.store.sync_directory",
        lambda path: seen.append((path, sorted(os.listdir(path)))),
    )
    save(store_in(tmp_path), 1)
    assert seen[-1] == (tmp_path, ["checkpoint-000000000001"])


def test_none_only_where_there_never_was_a_checkpoint(tmp_path):
    assert CheckpointStore(tmp_path / "missing").newest() is None
    assert not (tmp_path / "missing").exists()
    (tmp_path / ".tmp-checkpoint-000000000001").mkdir()
    assert CheckpointStore(tmp_path).newest() is None
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(CheckpointError, match="checkpoint-1: not a name"):
        CheckpointStore(tmp_path).newest()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot list"):
        CheckpointStore(tmp_path / "file").newest()
