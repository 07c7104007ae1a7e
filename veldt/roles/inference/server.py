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

    enough = 1 takes all requests at hand (GA3C); enough = half of all groups alternates two halves
    of the population (SEED); something between with a short wait is Sample Factory's."""

    enough: int = 1
    most: int = 64
    patience_seconds: float = 0.0


class BatchedInference(Role, Generic[Request]):
    """Answers several requests in one forward pass, when its rule says so.

    Subclasses `_add` requests, call `_answer_if_due` in every step, and define `_answer`."""

    policy: BatchedPolicy
    rule: BatchRule

    def open(self, context: NodeContext) -> None:
        self._enough, self._clock = self.rule.enough, context.clock
        self._requests: list[Request] = []
        self._first_came_at = 0.0
        telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")

    def device(self) -> str:
        return self.policy.device

    @property
    def patience_seconds(self) -> float:
        return self.rule.patience_seconds if self._requests else float("inf")

    @property
    def _is_full(self) -> bool:
        return len(self._requests) >= self.rule.most

    def _add(self, request: Request) -> None:
        if not self._requests:
            self._first_came_at = self._clock()
        self._requests.append(request)

    def _discard(self, unwanted: Callable[[Request], bool]) -> None:
        self._requests = [request for request in self._requests if not unwanted(request)]

    def _answer_if_due(self) -> bool:
        if not self._requests or not self._is_time():
            return False
        requests, self._requests = self._requests, []
        with self._inferring:
            self._answer(requests)
        self._batches.add()
        self._answers.add(len(requests))
        return True

    def _is_time(self) -> bool:
        if len(self._requests) >= self._enough:
            return True
        return self._clock() - self._first_came_at >= self.rule.patience_seconds

    def _answer(self, requests: list[Request]) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class SharedMemoryInference(BatchedInference[Row]):
    """Answers requests with its newest weights. The recurrent state of every environment is in
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
            while not self._is_full and (request := self.requests.take()):
                self._add(request)
        return self._answer_if_due()

    def _answer(self, requests: list[Row]) -> None:
        self.policy.refresh()
        actors = [int(slot["provenance"][0, PROVENANCE_ACTOR]) for slot, _ in requests]
        self.policy.act(requests, actors)
        for (slot, row), actor in zip(requests, actors, strict=True):
            self.requests.answer(slot, row, actor // self.groups_per_client)
