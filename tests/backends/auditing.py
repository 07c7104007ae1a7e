# SPDX-License-Identifier: Apache-2.0
"""A learner that keeps account of what it takes: each trajectory once, in order, none left out."""

from dataclasses import dataclass, fields

import numpy as np

from veldt.context import NodeContext
from veldt.roles.learner import Learner
from veldt.topology import Topology
from veldt.types import Batch


@dataclass(eq=False)
class AuditingLearner(Learner):
    """Counts, by the provenance of what arrives, what is missing and what comes again."""

    def open(self, context: NodeContext) -> None:
        super().open(context)
        counter = context.telemetry.counter
        self._committed = counter("committed_env_steps")
        self._missing, self._repeated = counter("missing"), counter("repeated")
        self._incarnations = counter("incarnations")
        self._next: dict[int, tuple[int, int]] = {}

    def _learn(self, batch: Batch) -> int | None:
        for provenance in batch["provenance"]:
            self._account_for(*(int(number) for number in provenance[:3]))
        self._committed.add(int(np.count_nonzero(~batch["ignored"][:-1])))
        return super()._learn(batch)

    def _account_for(self, actor: int, incarnation: int, sequence: int) -> None:
        last, expected = self._next.get(actor, (-1, 0))
        if incarnation > last:
            # Numbers begin again, or leave one out where a server has assembled what came before.
            self._incarnations.add()
            expected = sequence if sequence in (0, expected + 1) else expected
        if incarnation < last or sequence < expected:
            self._repeated.add()
            return
        self._missing.add(sequence - expected)
        self._next[actor] = (incarnation, sequence + 1)


def audited(topology: Topology) -> Topology:
    """`topology` with learners that keep account."""
    for node in topology.nodes:
        if type(node.role) is Learner:
            own = {entry.name: getattr(node.role, entry.name) for entry in fields(node.role)}
            node.role = AuditingLearner(**own)
    return topology
