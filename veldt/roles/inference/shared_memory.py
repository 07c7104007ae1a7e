# SPDX-License-Identifier: Apache-2.0
"""The inference server of one machine: one forward pass for the questions of many actors, which
lie in memory that it shares with them.

GA3C's predictors and Sample Factory's policy workers are this role with different rules for when a
batch is large enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.ports import RequestServer
from veldt.roles.ga3c_tuner import Gate
from veldt.roles.inference.batch_rule import BatchRule
from veldt.roles.inference.batched import BatchedInference
from veldt.roles.inference.batched_policy import BatchedPolicy, Row
from veldt.types import PROVENANCE_ACTOR


@dataclass(eq=False)
class SharedMemoryInference(BatchedInference[Row]):
    """Answers requests with its newest weights; keeps the recurrent state of every environment in
    memory that all servers of a policy share, so that any of them may answer any actor."""

    requests: RequestServer
    policy: BatchedPolicy
    rule: BatchRule
    """`rule.most` counts the groups of all actors."""
    state_memory: np.ndarray
    group_width: int
    groups_per_client: int = 1
    gate: Gate | None = None

    def open(self, context: NodeContext) -> None:
        self.policy.open(context, self.group_width, self.rule.most, self.state_memory)
        if self.gate is not None:
            self.gate.open(context)
        super().open(context)

    def step(self) -> bool:
        if self.gate is None or self.gate.is_open():
            while not self._open.is_full and (request := self.requests.take()):
                self._open.add(request)
        return self._answer_if_due()

    def _answer(self, rows: list[Row]) -> None:
        self.policy.refresh()
        actors = [int(slot["provenance"][0, PROVENANCE_ACTOR]) for slot, _ in rows]
        self.policy.act(rows, actors)
        for (slot, row), actor in zip(rows, actors, strict=True):
            self.requests.answer(slot, row, actor // self.groups_per_client)
