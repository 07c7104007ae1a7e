# SPDX-License-Identifier: Apache-2.0
"""RemotePolicy: an actor without weights asks an inference server that shares its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from veldt.context import NodeContext
from veldt.networks import make_distribution
from veldt.ports import ParameterSource
from veldt.types import ActionSpec, PolicyReply, Slot


class RequestPort(Protocol):
    """The asking end of a request channel."""

    def send(self, slot: Slot, row: int) -> None: ...

    def answered(self) -> tuple[int, int] | None: ...


@dataclass(frozen=True)
class RemotePolicyConfig:
    """How an actor acts without a network: it only knows what actions look like. A synchronous one
    is also given the board of weights, to see which version its server can act with."""

    action: ActionSpec
    distribution: str = "auto"
    num_weights: int = 0

    def __call__(
        self,
        context: NodeContext,
        port: RequestPort | Sequence[Any],
        widths: Sequence[int],
    ) -> RemotePolicy:
        if isinstance(port, Sequence):
            requests, weights = port
            return RemotePolicy(requests, len(widths), self, weights)
        return RemotePolicy(port, len(widths), self)


class RemotePolicy:
    """Sends row numbers; the server writes actions, outputs and version into the row itself."""

    def __init__(
        self,
        port: RequestPort,
        num_groups: int,
        config: RemotePolicyConfig,
        weights: ParameterSource | None = None,
    ) -> None:
        self._port, self._weights = port, weights
        self._version, self._vector = -1, np.empty(config.num_weights, np.float32)
        self._distribution = make_distribution(config.action, config.distribution)
        self._asked: list[tuple[Slot, int] | None] = [None] * num_groups
        self._answered: set[int] = set()

    def refresh(self, minimum_version: int = 0) -> bool:
        """The server always answers with its newest weights; whether those are as new as asked."""
        if self._weights is None or self._version >= minimum_version:
            return True
        newer = self._weights.pull(self._vector, newer_than=self._version)
        self._version = self._version if newer is None else newer
        return self._version >= minimum_version

    def request(self, group: int, slot: Slot, row: int) -> None:
        self._asked[group] = (slot, row)
        self._port.send(slot, row)

    def reply(self, group: int) -> PolicyReply | None:
        self._collect()
        asked = self._asked[group]
        if asked is None or group not in self._answered:
            return None
        self._answered.discard(group)
        self._asked[group] = None
        slot, row = asked
        action = slot["action"][row]
        version = int(slot["parameter_version"][row, 0])
        return PolicyReply(action, self._distribution.env_action(action), {}, version)

    def _collect(self) -> None:
        while (answer := self._port.answered()) is not None:
            for group, asked in enumerate(self._asked):
                # An answer to an earlier incarnation of this actor matches no open question.
                if asked is not None and (asked[0].index, asked[1]) == answer:
                    self._answered.add(group)
