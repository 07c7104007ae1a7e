# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from wiring import context, counted

from veldt.context import NodeContext
from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerOptions
from veldt.ports import Gradient
from veldt.roles.gradients import LocalOptimizer

SLOW = OptimizerOptions("sgd", 0.1, max_grad_norm=0.0)
FAST = OptimizerOptions("sgd", 1.0, max_grad_norm=0.0)


class Three(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(2, 1) for _ in range(3))


def opened(sink: LocalOptimizer, flat: FlatParameters, told: NodeContext) -> LocalOptimizer:
    sink.open(told, flat)
    return sink


def stepped(sink: LocalOptimizer) -> torch.Tensor:
    """How far each weight moves on a gradient of ones."""
    flat = FlatParameters(Three())
    before = flat.vector.clone()
    assert opened(sink, flat, context()).apply(Gradient(torch.ones(9), version=4)) == 5
    return before - flat.vector


def test_parts_step_at_their_own_rate():
    torch.testing.assert_close(stepped(LocalOptimizer(SLOW)), torch.full((9,), 0.1))
    moved = stepped(LocalOptimizer(SLOW, {"first": FAST}))
    torch.testing.assert_close(moved, torch.tensor([1.0] * 3 + [0.1] * 6))
    moved = stepped(LocalOptimizer(SLOW, {"first": FAST, "third": FAST}))
    torch.testing.assert_close(moved, torch.tensor([1.0] * 3 + [0.1] * 3 + [1.0] * 3))


def test_a_torn_rest_is_refused():
    with pytest.raises(ValueError, match="together"):
        stepped(LocalOptimizer(SLOW, {"second": FAST}))


def test_the_state_of_all_parts_is_kept():
    adam = OptimizerOptions("adam", 0.1, max_grad_norm=0.0)
    others = {"first": OptimizerOptions("adam", 6e-4, max_grad_norm=0.0)}
    flats = [FlatParameters(Three()) for _ in range(2)]
    first, second = (opened(LocalOptimizer(adam, others), flat, context()) for flat in flats)
    first.apply(Gradient(torch.arange(9.0), 0))
    second.load_state({name: array.copy() for name, array in first.state().items()})
    flats[1].load(flats[0].vector)
    for sink in (first, second):
        sink.apply(Gradient(torch.arange(9.0), 1))
    torch.testing.assert_close(flats[0].vector, flats[1].vector, rtol=0, atol=0)


def test_a_part_that_is_not_finite_is_dropped_alone():
    flat, told = FlatParameters(Three()), context()
    before = flat.vector.clone()
    gradient = torch.ones(9)
    gradient[0] = torch.nan
    opened(LocalOptimizer(SLOW, {"first": FAST}), flat, told).apply(Gradient(gradient, 0))
    torch.testing.assert_close(before - flat.vector, torch.tensor([0.0] * 3 + [0.1] * 6))
    assert counted(told, "dropped.not_finite") == 1
