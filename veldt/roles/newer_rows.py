# SPDX-License-Identifier: Apache-2.0
"""A source of batches that masks rows acted by weights which have since been replaced."""

from __future__ import annotations

import numpy as np

from veldt.context import NodeContext
from veldt.ports import ExperienceSource
from veldt.types import Batch


class NewerRows:
    """Masks rows older than `first_version` like reset rows; skips batches without any other row.

    Members of a population and players of a league replace their weights; the rows of the policy
    before say nothing about the one after it.
    """

    def __init__(self, context: NodeContext, source: ExperienceSource, first_version: int) -> None:
        self._source, self.first_version = source, first_version
        self._dropped = context.telemetry.counter("dropped.replaced_policy")

    def take_batch(self) -> Batch | None:
        while (batch := self._source.take_batch()) is not None:
            if self._has_rows_after_masking(batch):
                return batch
            self._source.release(batch)
        return None

    def release(self, batch: Batch) -> None:
        self._source.release(batch)

    def _has_rows_after_masking(self, batch: Batch) -> bool:
        old = batch["parameter_version"][:-1] < self.first_version
        if not old.any():
            return True
        ignored = batch["ignored"][:-1]
        old = np.repeat(old, ignored.shape[1] // old.shape[1], axis=1)
        self._dropped.add(int(np.count_nonzero(old & ~ignored)))
        ignored |= old
        return not ignored.all()
