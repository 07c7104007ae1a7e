# SPDX-License-Identifier: Apache-2.0
"""SharedMemoryPolicy: an actor without weights asks an inference server that shares its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veldt.context import NodeContext
from veldt.networks import NetworkFactory, make_distribution
from veldt.ports import ParameterSource, Policy, RequestClient
from veldt.types import PolicyReply, Slot


@dataclass(eq=False)
class SharedMemoryPolicy(Policy):
    """Sends row numbers; the server writes actions, outputs and version into the row itself. Of
    the network it only knows what actions look like.

    `weights`, for a synchronous actor: where to see which version the server can act with."""

    network: NetworkFactory
    requests: RequestClient
    weights: ParameterSource | None = None

    def open(self, context: NodeContext, widths: Sequence[int]) -> None:
        config, action = self.network.config, self.network.spec.action
        self._distribution = make_distribution(action, config.distribution)
        size = self.network.size() if self.weights is not None else 0
        self._version, self._vector = -1, np.empty(size, np.float32)
        self._asked: list[tuple[Slot, int] | None] = [None for _ in widths]
        self._answered: set[int] = set()

    def refresh(self, minimum_version: int = 0) -> bool:
        """The server always answers with its newest weights; whether those are as new as asked."""
        if self.weights is None or self._version >= minimum_version:
            return True
        newer = self.weights.pull(self._vector, newer_than=self._version)
        self._version = self._version if newer is None else newer
        return self._version >= minimum_version

    def request(self, group: int, slot: Slot, row: int) -> None:
        self._asked[group] = (slot, row)
        self.requests.send(slot, row)

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
        while (answer := self.requests.answered()) is not None:
            for group, asked in enumerate(self._asked):
                # An answer to an earlier incarnation of this actor matches no open question.
                if asked is not None and (asked[0].index, asked[1]) == answer:
                    self._answered.add(group)
