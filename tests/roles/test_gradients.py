# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from wiring import context, counted

from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerConfig
from veldt.roles.gradients.local import LocalOptimizerConfig

SLOW, FAST = OptimizerConfig("sgd", 0.1), OptimizerConfig("sgd", 1.0)


class Three(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(2, 1) for _ in range(3))


def stepped(config: LocalOptimizerConfig) -> torch.Tensor:
    """How far each weight moves on a gradient of ones."""
    flat = FlatParameters(Three())
    before = flat.vector.clone()
    sink = config(context(), flat, None)
    assert sink.apply(torch.ones(9), 4) == 5
    return before - flat.vector


def test_parts_step_at_their_own_rate():
    torch.testing.assert_close(stepped(LocalOptimizerConfig(SLOW)), torch.full((9,), 0.1))
    moved = stepped(LocalOptimizerConfig(SLOW, {"first": FAST}))
    torch.testing.assert_close(moved, torch.tensor([1.0] * 3 + [0.1] * 6))
    moved = stepped(LocalOptimizerConfig(SLOW, {"first": FAST, "third": FAST}))
    torch.testing.assert_close(moved, torch.tensor([1.0] * 3 + [0.1] * 3 + [1.0] * 3))


def test_a_torn_rest_is_refused():
    with pytest.raises(ValueError, match="together"):
        stepped(LocalOptimizerConfig(SLOW, {"second": FAST}))


def test_the_state_of_all_parts_is_kept():
    config = LocalOptimizerConfig(OptimizerConfig("adam", 0.1), {"first": OptimizerConfig("adam")})
    flats = [FlatParameters(Three()) for _ in range(2)]
    first, second = (config(context(), flat, None) for flat in flats)
    first.apply(torch.arange(9.0), 0)
    second.load_state({name: array.copy() for name, array in first.state().items()})
    flats[1].load(flats[0].vector)
    for sink in (first, second):
        sink.apply(torch.arange(9.0), 1)
    torch.testing.assert_close(flats[0].vector, flats[1].vector, rtol=0, atol=0)


def test_a_part_that_is_not_finite_is_dropped_alone():
    flat, told = FlatParameters(Three()), context()
    before = flat.vector.clone()
    gradient = torch.ones(9)
    gradient[0] = torch.nan
    LocalOptimizerConfig(SLOW, {"first": FAST})(told, flat, None).apply(gradient, 0)
    torch.testing.assert_close(before - flat.vector, torch.tensor([0.0] * 3 + [0.1] * 6))
    assert counted(told, "dropped.not_finite") == 1
