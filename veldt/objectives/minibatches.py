# SPDX-License-Identifier: Apache-2.0
"""A batch of trajectories in shuffled minibatches of equal size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from veldt.objectives import Tensors


class Minibatches:
    """Cuts prepared rows [T, B, ...] into `count` parts, another way each time it is asked.

    Without memory the rows of all trajectories are mixed, and a minibatch is [n, ...]. With memory
    whole columns stay together, [T, n, ...], beside their `state.*` entries [n, ...]."""

    def __init__(self, rows: Tensors, states: Tensors, count: int, whole_columns: bool) -> None:
        self._steps, self._columns = next(iter(rows.values())).shape[:2]
        self._whole, self._states = whole_columns, states
        self._rows = rows if whole_columns else {k: v.flatten(0, 1) for k, v in rows.items()}
        self._items = self._columns if whole_columns else self._steps * self._columns
        self._count = min(count, self._items)

    def shuffled(self, generator: torch.Generator) -> Iterator[Tensors]:
        """Every row once. Sizes differ by at most one row (or column)."""
        device = next(iter(self._rows.values())).device
        if self._count == 1:
            yield {**self._rows, **self._states}
            return
        order = torch.randperm(self._items, generator=generator).to(device)
        for index in order.tensor_split(self._count):
            yield self._part(index)

    def _part(self, index: Tensor) -> Tensors:
        axis = 1 if self._whole else 0
        rows = {name: entry.index_select(axis, index) for name, entry in self._rows.items()}
        states = {name: entry.index_select(0, index) for name, entry in self._states.items()}
        return {**rows, **states}
