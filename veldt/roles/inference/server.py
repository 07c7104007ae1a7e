# SPDX-License-Identifier: Apache-2.0
"""Batched inference servers, and the one that shares the memory of its machine's actors.

GA3C's predictors and Sample Factory's policy workers are `SharedMemoryInference` with different
rules for when a batch is large enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from veldt.context import NodeContext
from veldt.ports import RequestServer
from veldt.role import Role
from veldt.roles.ga3c_tuner import Gate
from veldt.roles.inference.batched_policy import BatchedPolicy, Row
from veldt.types import PROVENANCE_ACTOR

Request = TypeVar("Request")


@dataclass(frozen=True)
class BatchRule:
    """When a forward pass begins: at `enough` requests, or `patience_seconds` after the first.

    enough = 1 takes what is there (GA3C); enough = half of all groups alternates two halves of the
    population (SEED); something between with a short patience is Sample Factory's."""

    enough: int = 1
    most: int = 64
    patience_seconds: float = 0.0


class OpenRequests(Generic[Request]):
    """Requests that wait for company, in the order they came."""

    def __init__(self, rule: BatchRule, clock: Callable[[], float]) -> None:
        self.rule, self._clock = rule, clock
        self._open: list[Request] = []
        self._opened_at = 0.0

    @property
    def patience_seconds(self) -> float:
        """How long a node may sleep although it has something to do soon."""
        return self.rule.patience_seconds if self._open else float("inf")

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.rule.most

    def add(self, request: Request) -> None:
        if not self._open:
            self._opened_at = self._clock()
        self._open.append(request)

    def discard(self, unwanted: Callable[[Request], bool]) -> None:
        self._open = [request for request in self._open if not unwanted(request)]

    def take_if_due(self) -> list[Request]:
        """All of them when it is time for a forward pass, else none."""
        if not self._open or not self._is_time():
            return []
        taken, self._open = self._open, []
        return taken

    def _is_time(self) -> bool:
        if len(self._open) >= self.rule.enough:
            return True
        return self._clock() - self._opened_at >= self.rule.patience_seconds


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
