# SPDX-License-Identifier: Apache-2.0
"""A batch of trajectories in shuffled minibatches of equal size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from veldt.objectives import Tensors

INDEX = "index"
"""Of a part: which rows of the others belong to it."""


class Minibatches:
    """Cuts prepared rows [T, B, ...] into `count` parts, another way each time it is asked.

    Without memory the rows of all trajectories are mixed, and a minibatch is [n, ...]. With memory
    whole columns stay together, [T, n, ...], beside their `state.*` entries [n, ...]. A part is all
    rows and an index, so that gathering is recorded together with the loss. `counted` [T, B] leaves
    the other rows out, which memory would need."""

    def __init__(
        self,
        rows: Tensors,
        states: Tensors,
        count: int,
        whole_columns: bool,
        counted: Tensor | None = None,
    ) -> None:
        steps, columns = next(iter(rows.values())).shape[:2]
        folded = rows if whole_columns else {k: v.flatten(0, 1) for k, v in rows.items()}
        self._all = {**folded, **states}
        self._items = columns if whole_columns else steps * columns
        self._places = None
        if counted is not None:
            self._places = counted.flatten().nonzero().squeeze(1)
            self._items = len(self._places)
        self._count = min(count, self._items)

    def shuffled(self, generator: torch.Generator) -> Iterator[Tensors]:
        """Every row once. Sizes differ by at most one row (or column)."""
        if self._count == 1 and self._places is None:
            yield self._all
            return
        device = next(iter(self._all.values())).device
        order = torch.randperm(self._items, generator=generator).to(device)
        if self._places is not None:
            order = self._places[order]
        for index in order.tensor_split(self._count):
            yield {**self._all, INDEX: index}


def chosen(part: Tensors, whole_columns: bool) -> Tensors:
    """The rows that belong to a part."""
    if INDEX not in part:
        return part
    rows = dict(part)
    index = rows.pop(INDEX)
    return {
        name: entry.index_select(int(whole_columns and not name.startswith("state.")), index)
        for name, entry in rows.items()
    }
