# SPDX-License-Identifier: Apache-2.0
"""What inference servers share, however the questions reach them."""

from __future__ import annotations

from typing import Generic, TypeVar

from veldt.context import NodeContext
from veldt.role import Role
from veldt.roles.inference.batch_rule import BatchRule, OpenRequests
from veldt.roles.inference.batched_policy import BatchedPolicy

Question = TypeVar("Question")


class BatchedInference(Role, Generic[Question]):
    """Answers many questions at once, when its rule says so. Subclasses give _answer."""

    policy: BatchedPolicy
    rule: BatchRule

    def open(self, context: NodeContext) -> None:
        self._open: OpenRequests[Question] = OpenRequests(self.rule, context.clock)
        telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")

    def device(self) -> str:
        return self.policy.device

    @property
    def patience_seconds(self) -> float:
        """How long this node may sleep although it has something to do soon."""
        return self._open.patience_seconds

    def _answer_if_due(self) -> bool:
        questions = self._open.take_if_due()
        if not questions:
            return False
        with self._inferring:
            self._answer(questions)
        self._batches.add()
        self._answers.add(len(questions))
        return True

    def _answer(self, questions: list[Question]) -> None:
        raise NotImplementedError
