# SPDX-License-Identifier: Apache-2.0
"""A restored generator goes on exactly where the saved one stood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from veldt.checkpoints.store import CheckpointStore
from veldt.random_states import (
    generator_to_array,
    json_from_array,
    json_to_array,
    restore_generator,
    restore_torch_generator,
    torch_generator_to_array,
)

BIT_GENERATORS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


@pytest.mark.parametrize("kind", BIT_GENERATORS)
def test_numpy_generators_continue_exactly(tmp_path: Path, kind: str) -> None:
    bit_generator = getattr(np.random, kind)
    saved = np.random.Generator(bit_generator(3))
    saved.integers(0, 9, 5, dtype=np.int32)  # leaves half of a 64-bit draw buffered
    store = CheckpointStore(tmp_path)
    store.save(1, {"actor-0": {"random": generator_to_array(saved)}}, {})
    restored = np.random.Generator(bit_generator(99))
    restore_generator(restored, store.newest().load("actor-0")["random"])
    for draw in (lambda g: g.integers(0, 9, 7, dtype=np.int32), lambda g: g.normal(size=1000)):
        np.testing.assert_array_equal(draw(restored), draw(saved))


def test_a_state_of_another_kind_is_refused() -> None:
    state = generator_to_array(np.random.Generator(np.random.Philox(1)))
    with pytest.raises(ValueError, match="is of Philox, the generator of PCG64"):
        restore_generator(np.random.default_rng(1), state)


def test_torch_generators_continue_exactly(tmp_path: Path) -> None:
    saved = torch.Generator().manual_seed(3)
    torch.randn(7, generator=saved)
    store = CheckpointStore(tmp_path)
    store.save(1, {"learner-0": {"random": torch_generator_to_array(saved)}}, {})
    restored = torch.Generator()
    restore_torch_generator(restored, store.newest().load("learner-0")["random"])
    assert torch.equal(torch.randn(99, generator=restored), torch.randn(99, generator=saved))


def test_json_values_survive_as_arrays() -> None:
    value = {"players": ["main", "exploiter"], "big": 2**127 + 1, "rate": 0.1, "none": None}
    array = json_to_array(value)
    assert array.dtype == np.uint8
    assert json_from_array(array) == value
