# SPDX-License-Identifier: Apache-2.0
"""The inference server of one machine: one forward pass for the questions of many actors, which
lie in memory that it shares with them.

GA3C's predictors and Sample Factory's policy workers are this role with different rules for when a
batch is large enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from veldt.context import NodeContext
from veldt.networks import Network
from veldt.population.column_policy import ColumnPolicy
from veldt.ports import ParameterSource
from veldt.roles.annealing import Gate
from veldt.roles.inference.batch_rule import BatchRule, OpenRequests
from veldt.roles.inference.batched_policy import BatchedPolicy, Row
from veldt.roles.policies.local import SampleActions, Selection
from veldt.types import PROVENANCE_ACTOR, Slot


class AnswerPort(Protocol):
    """The answering end of a request channel."""

    def take(self) -> tuple[Slot, int] | None: ...

    def answer(self, slot: Slot, row: int, client: int) -> None: ...


class InferenceServer:
    """Answers requests with its newest weights; keeps the recurrent state of every environment in
    memory that all servers of a policy share, so that any of them may answer any actor."""

    restartable = True

    def __init__(
        self,
        context: NodeContext,
        *,
        requests: AnswerPort,
        parameters: ParameterSource | None = None,
        make_network: Callable[[], Network],
        group_width: int,
        groups_per_client: int,
        rule: BatchRule,
        state: np.ndarray,
        make_selection: Callable[..., Selection] = SampleActions,
        make_policy: Callable[..., BatchedPolicy | ColumnPolicy] = BatchedPolicy,
        device: str = "cpu",
        torch_threads: int = 1,
        memory: list[np.ndarray] | None = None,
        gate: Callable[..., Gate] | None = None,
        gate_port: object = None,
    ) -> None:
        torch.set_num_threads(torch_threads)
        self._requests, self._groups_per_client = requests, groups_per_client
        self._open: OpenRequests[Row] = OpenRequests(rule, context.clock)
        self._policy = make_policy(
            context,
            parameters,
            make_network,
            group_width,
            rule.most,
            state,
            make_selection=make_selection,
            device=device,
            memory=memory,
        )
        self._gate = gate(gate_port, index=context.index) if gate else None
        telemetry = context.telemetry
        self._inferring = telemetry.stage("infer")
        self._batches = telemetry.counter("inference_batches")
        self._answers = telemetry.counter("inference_requests")

    @property
    def patience_seconds(self) -> float:
        """How long this node may sleep although it has something to do soon."""
        return self._open.patience_seconds

    def step(self) -> bool:
        if self._gate is not None and not self._gate.is_open():
            return self._answer_what_is_open()
        while not self._open.is_full and (request := self._requests.take()):
            self._open.add(request)
        return self._answer_what_is_open()

    def _answer_what_is_open(self) -> bool:
        rows = self._open.take_if_due()
        if not rows:
            return False
        with self._inferring:
            self._answer(rows)
        self._batches.add()
        self._answers.add(len(rows))
        return True

    def _answer(self, rows: list[Row]) -> None:
        self._policy.refresh()
        actors = [int(slot["provenance"][0, PROVENANCE_ACTOR]) for slot, _ in rows]
        self._policy.act(rows, actors)
        for (slot, row), actor in zip(rows, actors, strict=True):
            self._requests.answer(slot, row, actor // self._groups_per_client)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: dict[str, np.ndarray]) -> None: ...
