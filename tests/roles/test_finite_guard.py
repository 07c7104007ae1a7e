# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from wiring import context

from veldt.networks import FlatParameters
from veldt.roles.learner import MOST_DROPS_IN_A_ROW, FiniteGuard, NotFiniteError


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.register_buffer("statistics", torch.arange(3.0))


class Sink:
    """Counts how often it was rolled back."""

    rollbacks = 0

    def roll_back(self):
        self.rollbacks += 1


class Guarded:
    def __init__(self):
        self.flat, self.sink, self.told = FlatParameters(Network()), Sink(), context()
        self.drops = self.told.telemetry.counter("dropped.not_finite")
        self.guard = FiniteGuard(self.told, self.flat, 0, self.sink, None)
        self.version = 0

    def update(self, drop=False):
        self.version += 1
        if drop:
            self.drops.add()
        self.guard.check(self.version)


def test_only_drops_in_a_row_end_a_run():
    guarded = Guarded()
    for number in range(100):
        guarded.update(drop=number % MOST_DROPS_IN_A_ROW != 0)
    guarded.update()
    for _ in range(MOST_DROPS_IN_A_ROW - 1):
        guarded.update(drop=True)
    with pytest.raises(NotFiniteError, match="in a row"):
        guarded.update(drop=True)


def test_statistics_that_took_a_bad_batch_in_are_restored():
    guarded = Guarded()
    before = guarded.flat.vector.clone()
    guarded.flat.vector[-1] = torch.nan
    guarded.update(drop=True)
    torch.testing.assert_close(guarded.flat.vector, before)
    assert guarded.sink.rollbacks == 1
    guarded.update(drop=True)
    assert guarded.sink.rollbacks == 1


@pytest.mark.parametrize("broken", [False, True])
def test_broken_weights_are_never_kept_as_good(broken):
    guarded = Guarded()
    first = guarded.flat.vector.clone()
    for _ in range(99):
        guarded.update()
    guarded.flat.vector[0] = torch.nan if broken else 7.0
    guarded.update()  # the hundredth: weights are kept if they are finite
    expected = first if broken else guarded.flat.vector.clone()
    guarded.flat.vector[0] = torch.inf
    for _ in range(MOST_DROPS_IN_A_ROW - 1):
        guarded.update(drop=True)
    with pytest.raises(NotFiniteError):
        guarded.update(drop=True)
    torch.testing.assert_close(guarded.flat.vector, expected)
